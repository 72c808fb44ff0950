package inbox

import (
	"fmt"
	"net/http"
	"strings"
	"time"
)

// maxShownSource bounds the source on a page; the whole is a link away.
const maxShownSource = 512 << 10

type listView struct {
	Messages []summary
	SMTPAddr string
}

func (h handler) listPage(w http.ResponseWriter, _ *http.Request) error {
	return render(w, "list.html", listView{Messages: h.store.list(), SMTPAddr: h.inbox.smtpAddr()})
}

func (h handler) clearPage(w http.ResponseWriter, r *http.Request) error {
	if err := h.store.clear(); err != nil {
		return err
	}
	http.Redirect(w, r, "/", http.StatusSeeOther)
	return nil
}

type messageView struct {
	message
	CC        []string
	Tabs      []tab
	View      string
	Source    string
	Truncated bool
}

// tab is one of the ways to look at a message.
type tab struct{ Name, Label string }

func (h handler) messagePage(w http.ResponseWriter, r *http.Request) error {
	m, raw, err := h.message(r)
	if err != nil {
		return err
	}
	v := messageView{message: m, CC: m.Header.addresses("Cc"), Tabs: tabs(m)}
	v.View = v.Tabs[0].Name
	for _, t := range v.Tabs {
		if t.Name == r.FormValue("view") {
			v.View = t.Name
		}
	}
	if v.View == "source" {
		v.Truncated = len(raw) > maxShownSource
		v.Source = strings.ToValidUTF8(string(raw[:min(len(raw), maxShownSource)]), "\uFFFD")
	}
	return render(w, "message.html", v)
}

// tabs lists the views that the message has, the one to open with first.
func tabs(m message) []tab {
	var list []tab
	if m.HTML != "" {
		list = append(list, tab{"html", "HTML"})
	}
	if m.Text != "" {
		list = append(list, tab{"text", "Text"})
	}
	return append(list, tab{"headers", "Headers"}, tab{"source", "Source"})
}

func formatSize(n int) string {
	switch {
	case n < 1000:
		return fmt.Sprintf("%d B", n)
	case n < 1000_000:
		return fmt.Sprintf("%.1f kB", float64(n)/1000)
	}
	return fmt.Sprintf("%.1f MB", float64(n)/1000_000)
}

// formatClock is short for what came today: the inbox is about just now.
func formatClock(t time.Time) string {
	t = t.Local()
	now := time.Now()
	if t.YearDay() == now.YearDay() && t.Year() == now.Year() {
		return t.Format("15:04:05")
	}
	return t.Format("2 Jan 15:04")
}
