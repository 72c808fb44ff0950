package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"text/template"

	"github.com/outboxd/outboxd/cmd/internal/fakeesp"
)

type fakeESPCmd struct {
	Addr     string `default:"127.0.0.1:8026" help:"Address of the services' APIs and of the page."`
	SMTPAddr string `name:"smtp-addr" default:"127.0.0.1:1026" help:"Address of the SMTP relay; it takes mail from anybody, without TLS."`
	URL      string `name:"url" help:"How others reach the first address, if it is another." placeholder:"URL"`
	Domain   string `default:"fake.test" help:"Mail for addresses at this domain and below asks for faults."`
	Script   string `type:"existingfile" help:"A file with rules for faults, in force from the start." placeholder:"FILE"`
	Log      string `default:"-" help:"Where the log goes, one line of JSON per request: a file, or - for standard output." placeholder:"FILE"`

	WebhookURL     string `name:"webhook-url" help:"Post webhooks about what was accepted to /hooks/<provider> below this URL." placeholder:"URL"`
	WebhookCopies  int    `default:"1" help:"Report each event so many times; SendGrid's copies have ids of their own." placeholder:"N"`
	WebhookShuffle bool   `help:"Mix the order of the events."`
}

// Help implements kong's HelpProvider.
func (fakeESPCmd) Help() string {
	faults := "  " + strings.ReplaceAll(fakeesp.Faults(), "\n", "\n  ")
	return strings.NewReplacer("{faults}", faults, "{providers}", strings.Join(fakeesp.Providers(), ", ")).Replace(fakeESPHelp)
}

const fakeESPHelp = `It stands in for {providers}: all in one process, in their own wire formats and with their own refusals. It
delivers nothing. The variables that point outboxd at it are printed at the start.

Faults:

{faults}

A recipient asks for a fault by its local part, at fake.test or a domain below it: timeout@fake.test, always;
reset+2@a.fake.test, for the first two tries; jane+429@fake.test works as well.

A script is a JSON array of rules. Of all rules the first that fits counts, after recipients:

  [{"fault": "429", "provider": "sendgrid", "from": "10s", "until": "30s", "retry_after": "7s"},
   {"fault": "reset", "first": 1, "last": 3},
   {"fault": "slow", "delay": "2s", "until": "1m"}]

"provider" narrows a rule to one. "from" and "until" are times since the script was set, "first" and "last" count the
requests to a provider since then.

Webhooks are in the services' own formats and signed. Mail is reported as delivered, except to bounce@, deferred@
and complaint@ fake.test. What is not answered 2xx is posted up to five times.

  GET  /                    a page of what came in
  GET  /fake/accepted       what was accepted, as JSON
  GET  /fake/accepted/{id}  the bytes of one message, as they were handed over
  GET  /fake/script         the rules in force
  POST /fake/script         other rules; [] for none
  POST /fake/reset          forget all, and begin the script anew`

// Run runs the fake until a signal comes.
func (c fakeESPCmd) Run(e environment) error {
	options := fakeesp.Options{
		HTTPAddr: c.Addr, SMTPAddr: c.SMTPAddr, URL: c.URL, Domain: c.Domain,
		WebhookURL: c.WebhookURL, WebhookCopies: c.WebhookCopies, WebhookShuffle: c.WebhookShuffle,
	}
	if c.Script != "" {
		text, err := os.ReadFile(c.Script)
		if err != nil {
			return err
		}
		if options.Script, err = fakeesp.ParseScript(text); err != nil {
			return fmt.Errorf("%s: %w", c.Script, err)
		}
	}
	log, closeLog, err := c.openLog(e.out)
	if err != nil {
		return err
	}
	defer closeLog()
	options.Log = log
	server, err := fakeesp.Start(options)
	if err != nil {
		return err
	}
	defer server.Close()
	// The log has standard output to itself.
	if err := fakeESPWelcome.Execute(e.errOut, fakeESPView{server, c.WebhookURL}); err != nil {
		return err
	}
	<-e.ctx.Done()
	return nil
}

func (c fakeESPCmd) openLog(out io.Writer) (log io.Writer, closeLog func(), err error) {
	if c.Log == "-" {
		return out, func() {}, nil
	}
	file, err := os.OpenFile(c.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, nil, err
	}
	return file, func() { _ = file.Close() }, nil
}

type fakeESPView struct {
	*fakeesp.Server
	WebhookURL string
}

var fakeESPWelcome = template.Must(template.New("fake-esp").Parse(`
fake-esp is ready: {{.URL}}/  Ctrl-C stops it. Variables for outboxd:
{{range .Environment}}
{{.}}{{end}}
{{- if .WebhookURL}}

Webhooks are posted to {{.WebhookURL}}/hooks/<provider>. These verify them:
{{range .WebhookEnvironment}}
{{.}}{{end}}
{{- end}}

`))
