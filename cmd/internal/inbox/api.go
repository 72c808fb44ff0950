package inbox

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/textproto"
	"strconv"
)

// apiListAnswer is the answer to GET /api/messages.
type apiListAnswer struct {
	Total    int       `json:"total"` // in the inbox, also with a limit
	Messages []summary `json:"messages"`
}

// apiMessageAnswer is the answer to GET /api/messages/{id}.
type apiMessageAnswer struct {
	summary
	CC          []string            `json:"cc"`
	ReplyTo     []string            `json:"reply_to"`
	MessageID   string              `json:"message_id"`
	Headers     map[string][]string `json:"headers"`
	Text        string              `json:"text"`
	HTML        string              `json:"html"`
	Attachments []apiAttachment     `json:"attachments"`
	// ParseError is not empty when the body could not be read.
	ParseError string `json:"parse_error,omitempty"`
}

type apiAttachment struct {
	Filename    string `json:"filename"`
	ContentType string `json:"content_type"`
	ContentID   string `json:"content_id,omitempty"`
	Disposition string `json:"disposition"`
	Size        int    `json:"size"`
	URL         string `json:"url"` // a path on this server
}

type apiError struct {
	Error string `json:"error"`
}

// apiList lists the messages, newest first; ?limit=N lists at most N.
func (h handler) apiList(w http.ResponseWriter, r *http.Request) error {
	list := h.store.list()
	answer := apiListAnswer{Total: len(list), Messages: list}
	if text := r.FormValue("limit"); text != "" {
		limit, err := strconv.Atoi(text)
		if err != nil || limit < 0 {
			return writeJSON(w, http.StatusBadRequest, apiError{Error: "limit is not a number"})
		}
		answer.Messages = list[:min(limit, len(list))]
	}
	return writeJSON(w, http.StatusOK, answer)
}

func (h handler) apiClear(w http.ResponseWriter, _ *http.Request) error {
	if err := h.store.clear(); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (h handler) apiMessage(w http.ResponseWriter, r *http.Request) error {
	m, _, err := h.message(r)
	if err != nil {
		return err
	}
	answer := apiMessageAnswer{
		summary:     m.summary,
		CC:          orEmpty(m.Header.addresses("Cc")),
		ReplyTo:     orEmpty(m.Header.addresses("Reply-To")),
		MessageID:   m.Header.get("Message-ID"),
		Headers:     map[string][]string{},
		Text:        m.Text,
		HTML:        m.HTML,
		Attachments: []apiAttachment{},
		ParseError:  m.Problem,
	}
	for _, f := range m.Header {
		name := textproto.CanonicalMIMEHeaderKey(f.Name)
		answer.Headers[name] = append(answer.Headers[name], f.Value())
	}
	for _, a := range m.Attachments {
		answer.Attachments = append(answer.Attachments, apiAttachment{
			Filename:    a.Filename,
			ContentType: a.ContentType,
			ContentID:   a.ContentID,
			Disposition: a.Disposition,
			Size:        len(a.Content),
			URL:         fmt.Sprintf("/messages/%s/attachments/%d", m.ID, a.Index),
		})
	}
	return writeJSON(w, http.StatusOK, answer)
}

// apiSource is the message byte for byte as it came over SMTP.
func (h handler) apiSource(w http.ResponseWriter, r *http.Request) error {
	_, raw, err := h.store.get(r.PathValue("id"))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Security-Policy", filePolicy)
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	send(w, raw)
	return nil
}

func writeJSON(w http.ResponseWriter, status int, answer any) error {
	body, err := json.MarshalIndent(answer, "", "  ")
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	send(w, append(body, '\n'))
	return nil
}

// orEmpty makes JSON say [] and not null.
func orEmpty(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
