package providertest

import (
	"slices"
	"strings"

	"github.com/outboxd/outboxd/providers"
)

// hardInputs returns the messages. Numbers of rows are those of the project's
// list of messages that break senders; what the API refuses before there is a
// message (rows 23 to 25: NUL, lone surrogates, duplicate keys in JSON) is here
// in the form in which a Go program could still hand it over.
func hardInputs() []hardInput {
	return slices.Concat(
		namesAndSubjects(), addressRows(), injections(), bodies(), files(), headerRows(),
	)
}

// long is longer than a line of a message may be.
var long = strings.Repeat("x", 1200)

func namesAndSubjects() []hardInput {
	var rows []hardInput
	for what, name := range map[string]string{
		"comma and umlauts": "Müller, Jürgen", "comma": "Doe, Jane", "quotes": `a "b" \ c`,
		"brackets": "<x@y.example>", "dots": "Acme Inc.", "emoji": "Ünal 🎉", "long": strings.Repeat("ö", 100),
		"parentheses": "Jane (Sales)", "an apostrophe": "O'Neil", "semicolon": "a;b:c",
	} {
		rows = append(rows, hardInput{name: "row 1: name with " + what, edit: func(m *providers.Message) {
			m.From.Name = name
			m.To[0].Name = name
			m.Cc = []providers.Address{{Name: name, Email: "cc@example.org"}}
			m.ReplyTo = []providers.Address{{Name: name, Email: "reply@example.com"}}
		}})
	}
	for what, subject := range map[string]string{
		"long, beyond ASCII": strings.Repeat("Grüße 🎉 ", 40) + "!", "long words": strings.Repeat("word ", 60) + "end",
		"one long word": long, "runs of spaces": strings.Repeat("two  spaces ", 40) + "end",
		"like an encoded word": "looks =?utf-8?q?like?= one", "one rune past the limit": strings.Repeat("🎉", 19) + "ä",
		"right to left": "שלום עולם", "combining": "e\u0301 and \u200d", "quotes": `say "hello", \o/`,
	} {
		rows = append(rows, hardInput{name: "row 12: subject " + what, edit: func(m *providers.Message) { m.Subject = subject }})
	}
	return append(rows, hardInput{
		name: "row 12: no subject", must: either, refusals: []string{"empty_subject"},
		edit: func(m *providers.Message) { m.Subject = "" },
	})
}

func addressRows() []hardInput {
	const aLabel = "xn--bcher-kva.example"
	rows := []hardInput{
		{name: "row 4: IDN in every field", edit: func(m *providers.Message) {
			m.From.Email = "from@" + aLabel
			m.To[0].Email = "to@" + aLabel
			m.Cc = []providers.Address{{Email: "cc@" + aLabel}}
			m.Bcc = []providers.Address{{Email: "bcc@" + aLabel}}
			m.ReplyTo = []providers.Address{{Email: "reply@" + aLabel}}
		}},
		{name: "row 10: addresses that differ in one letter", edit: func(m *providers.Message) {
			m.Cc = []providers.Address{{Email: "to-2@example.org"}}
			m.Bcc = []providers.Address{{Email: "to-3@example.org"}}
		}},
		{
			name: "blind copies only", must: either, refusals: []string{"no_recipient"},
			edit: func(m *providers.Message) { m.Bcc, m.To = m.To, nil },
		},
		{
			name: "several addresses to reply to", must: either, refusals: []string{"too_many_reply_to"},
			edit: func(m *providers.Message) {
				m.ReplyTo = []providers.Address{{Email: "a@example.com"}, {Name: "B, b", Email: "b@example.com"}}
			},
		},
		{
			name: "no recipient", must: fail, refusals: []string{"no_recipient"},
			edit: func(m *providers.Message) { m.To = nil },
		},
	}
	for field, set := range map[string]func(*providers.Message, string){
		"From": func(m *providers.Message, a string) { m.From.Email = a },
		"To":   func(m *providers.Message, a string) { m.To[0].Email = a },
		"Cc":   func(m *providers.Message, a string) { m.Cc = []providers.Address{{Email: a}} },
		"Bcc":  func(m *providers.Message, a string) { m.Bcc = []providers.Address{{Email: a}} },
		"Reply-To": func(m *providers.Message, a string) {
			m.ReplyTo = []providers.Address{{Email: a}}
		},
	} {
		rows = append(rows, hardInput{
			name: "row 5: local part beyond ASCII in " + field, must: either, refusals: []string{"utf8_address"},
			edit: func(m *providers.Message) { set(m, "jürgen@example.org") },
		})
		for row, address := range map[string]string{
			"row 2: line end":            "a\r\nBcc: b@example.org",
			"row 4: domain beyond ASCII": "a@bücher.example",
			"row 7: trailing dot":        "a@example.org.", "row 7: two dots": "a..b@example.org",
			"row 7: leading dot": ".a@example.org", "row 7: dot before the at": "a.@example.org",
			"no domain": "a@", "no at": "a", "space": "a b@example.org", "empty": "", "bracket": "a>@example.org",
			"row 24: invalid UTF-8": "\xff@example.org",
		} {
			rows = append(rows, hardInput{
				name: row + " in the address of " + field, must: fail, refusals: []string{"bad_address"},
				edit: func(m *providers.Message) { set(m, address) },
			})
		}
		if field == "Cc" || field == "Bcc" {
			rows = append(rows, hardInput{
				name: "row 10: the same address in To and " + field + " (F40)", must: fail,
				refusals: []string{"repeated_recipient"},
				edit:     func(m *providers.Message) { set(m, strings.ToUpper(m.To[0].Email)) },
			})
		}
	}
	return rows
}

// injections are line ends and other control characters, and what is no text,
// in whatever becomes a line of the message.
func injections() []hardInput {
	fields := map[string]func(*providers.Message, string){
		"subject":        func(m *providers.Message, s string) { m.Subject = s },
		"name":           func(m *providers.Message, s string) { m.From.Name = s },
		"name in To":     func(m *providers.Message, s string) { m.To[0].Name = s },
		"header name":    func(m *providers.Message, s string) { m.Headers = []providers.Header{{Name: s, Value: "1"}} },
		"header value":   func(m *providers.Message, s string) { m.Headers = []providers.Header{{Name: "X-A", Value: s}} },
		"file name":      func(m *providers.Message, s string) { m.Attachments = []providers.Attachment{{Filename: s}} },
		"content type":   func(m *providers.Message, s string) { file(m).ContentType = s },
		"content id":     func(m *providers.Message, s string) { file(m).ContentID = s },
		"name of a tag":  func(m *providers.Message, s string) { m.Tags = []providers.Tag{{Name: s, Value: "1"}} },
		"value of a tag": func(m *providers.Message, s string) { m.Tags = []providers.Tag{{Name: "a", Value: s}} },
		"name in Cc":     func(m *providers.Message, s string) { m.Cc = []providers.Address{{Name: s, Email: "cc@example.org"}} },
		"name in Bcc":    func(m *providers.Message, s string) { m.Bcc = []providers.Address{{Name: s, Email: "bcc@example.org"}} },
		"name in Reply-To": func(m *providers.Message, s string) {
			m.ReplyTo = []providers.Address{{Name: s, Email: "reply@example.com"}}
		},
	}
	var rows []hardInput
	for field, set := range fields {
		for what, text := range map[string]string{
			"rows 2 and 3: CRLF": "a\r\nBcc: b@example.org", "rows 2 and 3: LF": "a\nBcc: b@example.org",
			"rows 2 and 3: CR": "a\rb", "row 23: NUL": "a\x00b", "row 24: invalid UTF-8": "a\xffb",
			"NEL": "a\u0085b", "a line separator": "a\u2028Bcc: b@example.org", "a paragraph separator": "a\u2029b",
		} {
			rows = append(rows, hardInput{
				name: what + " in the " + field, must: fail,
				refusals: []string{"control_character", "bad_header"},
				edit:     func(m *providers.Message) { set(m, text) },
			})
		}
	}
	return rows
}

func bodies() []hardInput {
	rows := []hardInput{
		{name: "row 13: no HTML", edit: func(m *providers.Message) { m.HTML = "" }},
		{name: "row 13: no text", edit: func(m *providers.Message) { m.Text = "" }},
		{
			name: "row 13: neither", must: fail, refusals: []string{"empty_body"},
			edit: func(m *providers.Message) { m.Text, m.HTML = "", "" },
		},
		{
			name: "row 24: invalid UTF-8 in the text", must: fail, refusals: []string{"invalid_utf8"},
			edit: func(m *providers.Message) { m.Text = "a\xffb" },
		},
		{
			name: "row 24: invalid UTF-8 in the HTML", must: fail, refusals: []string{"invalid_utf8"},
			edit: func(m *providers.Message) { m.HTML = "a\xffb" },
		},
	}
	for what, text := range map[string]string{
		"F24: a single dot": ".", "F24: dots": "a\r\n.\r\n..\r\n.b\r\n.\r\n", "F24: a dot in the end": "a\r\n.",
		"bare line feeds": "a\nb\n\nc\n", "bare carriage returns": "a\rb", "a bare CR, encoded bytes and LF": "a\rü=\nb", "all line ends": "a\r\nb\nc\rd",
		"a line of 2000 bytes": strings.Repeat("x", 2000), "a long line beyond ASCII": strings.Repeat("ü", 1000),
		"lines that begin with From": "From here\r\n>From there\r\n", "like a boundary": "--\r\n--x\r\n--=_\r\n",
		"equals signs": "a=3D=\r\n=\r\n", "spaces at the end of a line": "a  \r\nb\t\r\n", "emoji": "🎉 ü\u00a0é\u2028x",
		"only a space": " ", "markup": "<a href=\"https://example.com/?a=1&b=2\">&amp;</a>",
	} {
		rows = append(rows, hardInput{name: what + " in both bodies", edit: func(m *providers.Message) { m.Text, m.HTML = text, text }})
	}
	return rows
}

// file returns the one attachment of m.
func file(m *providers.Message) *providers.Attachment {
	m.Attachments = []providers.Attachment{{Filename: "a.bin", Content: []byte("content")}}
	return &m.Attachments[0]
}

// attach returns the edit that attaches files.
func attach(files ...providers.Attachment) func(*providers.Message) {
	return func(m *providers.Message) { m.Attachments = files }
}

func files() []hardInput {
	var binary []byte
	for i := range 1000 {
		binary = append(binary, byte(i))
	}
	logo := providers.Attachment{Filename: "logo.png", ContentType: "image/png", ContentID: "logo@example", Content: []byte("png")}
	terms := providers.Attachment{Filename: "terms.pdf", ContentType: "application/pdf", Content: binary}
	return append(fileNames(), []hardInput{
		{
			name: "row 14: an empty file", must: either, refusals: []string{"empty_attachment"},
			edit: attach(providers.Attachment{Filename: "empty.txt", ContentType: "text/plain"}),
		},
		{name: "row 18: every byte", edit: attach(terms)},
		{name: "row 19: a file in the HTML", edit: attach(logo, terms)},
		{
			name: "row 19: a file in the HTML without a name", edit: attach(providers.Attachment{
				ContentType: "image/png", ContentID: "logo@example", Content: []byte("png"),
			}),
		},
		{
			name: "row 19: a file for HTML that is not there (F23)", must: either, refusals: []string{"bad_content_id"},
			edit: func(m *providers.Message) { m.HTML, m.Attachments = "", []providers.Attachment{logo, terms} },
		},
		{
			name: "row 19: a content id with a bracket", must: either, refusals: []string{"bad_content_id"},
			edit: attach(providers.Attachment{Filename: "a.png", ContentID: "a>b", Content: []byte("png")}),
		},
		{
			name: "a file without a name", must: either, refusals: []string{"unnamed_attachment"},
			edit: attach(providers.Attachment{ContentType: "application/pdf", Content: []byte("x")}),
		},
		{name: "a file without a type", edit: attach(providers.Attachment{Filename: "a.bin", Content: []byte{0, '\r', '\n', '.', '\r', '\n'}})},
		{
			name: "a type with parameters", must: either, refusals: []string{"content_type_parameters"},
			edit: attach(providers.Attachment{
				Filename: "invite.ics", ContentType: "text/calendar; method=REQUEST; charset=utf-8", Content: []byte("ü"),
			}),
		},
		{name: "a message as a file", edit: attach(providers.Attachment{
			Filename: "mail.eml", ContentType: "message/rfc822", Content: []byte("Subject: x\n\n.\r\n\ry"),
		})},
		{
			name: "a malformed type", must: fail, refusals: []string{"bad_content_type"},
			edit: attach(providers.Attachment{Filename: "a", ContentType: "a/b; =c", Content: []byte("x")}),
		},
		{
			name: "two files of one name", edit: attach(
				providers.Attachment{Filename: "a.txt", ContentType: "text/plain", Content: []byte("1")},
				providers.Attachment{Filename: "a.txt", ContentType: "text/plain", Content: []byte("2")},
			),
		},
		{name: "F23: everything at once", edit: func(m *providers.Message) {
			m.Cc = []providers.Address{{Name: "C", Email: "cc@example.org"}}
			m.Bcc = []providers.Address{{Email: "bcc@example.org"}}
			m.ReplyTo = []providers.Address{{Email: "reply@example.com"}}
			m.HTML = `<img src="cid:logo@example">`
			m.Attachments = []providers.Attachment{logo, terms}
			m.Tags = []providers.Tag{{Name: "campaign", Value: "spring"}}
		}},
	}...)
}

func fileNames() []hardInput {
	var rows []hardInput
	for what, name := range map[string]string{
		"beyond ASCII": "Übersicht – März.pdf", "quotes": `we"ird; name\.bin`, "long": strings.Repeat("ä", 120) + ".txt",
		"a path": "../../etc/passwd", "emoji": "🎉.png", "spaces": " a  b .txt",
		"an apostrophe and a percent sign": "it's 100%.txt",
	} {
		rows = append(rows, hardInput{name: "file name: " + what, edit: attach(providers.Attachment{
			Filename: name, ContentType: "application/pdf", Content: []byte("x"),
		})})
	}
	return rows
}

func headerRows() []hardInput {
	set := func(list ...providers.Header) func(*providers.Message) {
		return func(m *providers.Message) { m.Headers = list }
	}
	rows := []hardInput{
		{name: "row 20: one-click", edit: set(
			providers.Header{Name: "List-Unsubscribe", Value: "<mailto:u@example.com?subject=x>, <https://example.com/u?a=1&b=" + strings.Repeat("x", 300) + ">"},
			providers.Header{Name: "List-Unsubscribe-Post", Value: "List-Unsubscribe=One-Click"},
		)},
		{name: "a header beyond ASCII", edit: set(providers.Header{Name: "X-Greeting", Value: "Grüße aus Köln, " + strings.Repeat("ü", 100)})},
		{name: "a long header of many words", edit: set(providers.Header{Name: "X-Words", Value: strings.Repeat("word ", 300) + "end"})},
		{
			name: "a header word of 1200 bytes", must: either, refusals: []string{"line_too_long"},
			edit: set(providers.Header{Name: "X-Long", Value: long}),
		},
		{
			name: "a header twice", must: either, refusals: []string{"bad_header"},
			edit: set(providers.Header{Name: "X-A", Value: "1"}, providers.Header{Name: "x-a", Value: "2"}),
		},
	}
	for _, name := range []string{"X A", "X:A", "X-Ä", "", " ", strings.Repeat("x", 100)} {
		rows = append(rows, hardInput{
			name: "row 3: a header named " + name, must: fail, refusals: []string{"bad_header"},
			edit: set(providers.Header{Name: name, Value: "1"}),
		})
	}
	for _, name := range []string{
		"From", "To", "Cc", "Bcc", "Reply-To", "Subject", "Date", "Message-ID", "MIME-Version", "Return-Path",
		"Received", "DKIM-Signature", "Content-Type", "Content-Transfer-Encoding", "content-id", "bCC",
	} {
		rows = append(rows, hardInput{
			name: "row 22: the header " + name, must: fail, refusals: []string{"protected_header"},
			edit: set(providers.Header{Name: name, Value: "x"}),
		})
	}
	return rows
}
