package app

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v4"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/outbox"
)

const root = "../../../"

// metric is what a program registers.
type metric struct {
	help   string
	labels []string
}

var descPattern = regexp.MustCompile(`fqName: "([^"]+)", help: "([^"]*)", .*variableLabels: \{([^}]*)\}`)

// registered are the metrics of both programs, without those of Go's runtime.
func registered(t *testing.T) map[string]metric {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	registry := newRegistry(pool)
	outbox.NewMetrics(registry)
	outbox.RegisterState(registry, pool)
	api.NewMetrics(registry)

	descs := make(chan *prometheus.Desc)
	go func() {
		defer close(descs)
		registry.Describe(descs)
	}()
	all := map[string]metric{}
	for d := range descs {
		parts := descPattern.FindStringSubmatch(d.String())
		if parts == nil {
			t.Fatalf("%s is not understood", d)
		}
		if strings.HasPrefix(parts[1], "outboxd_") {
			all[parts[1]] = metric{parts[2], strings.FieldsFunc(parts[3], func(c rune) bool { return c == ',' })}
		}
	}
	return all
}

func readFile(t *testing.T, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(root + path)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// docs/metrics.md has every metric with its labels, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	all := registered(t)
	rows := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(outboxd_\\w+)` \\| ?(.*?) \\| .+ \\|$").FindAllStringSubmatch(string(readFile(t, "docs/metrics.md")), -1) {
		rows[row[1]] = row[2]
		if _, ok := all[row[1]]; !ok {
			t.Errorf("%s is documented and does not exist", row[1])
		}
	}
	if len(all) < 20 {
		t.Errorf("only %d metrics", len(all))
	}
	for name, m := range all {
		labels, ok := rows[name]
		if !ok {
			t.Errorf("%s is not documented", name)
		}
		if m.help == "" || !strings.HasSuffix(m.help, ".") {
			t.Errorf("%s: help is %q, want a sentence", name, m.help)
		}
		for _, label := range m.labels {
			if labels != "the same" && !strings.Contains(labels, "`"+label+"`") {
				t.Errorf("%s: the label %s is not documented", name, label)
			}
			if !slices.Contains([]string{"outcome", "provider", "evidence", "reason", "type", "method", "route", "status", "priority", "queue", "state"}, label) {
				t.Errorf("%s: is the label %s bounded?", name, label)
			}
		}
	}
}

// checkQuery holds an expression to what exists.
func checkQuery(t *testing.T, all map[string]metric, where, query string) {
	t.Helper()
	query = strings.ReplaceAll(query, "$__rate_interval", "5m")
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		t.Errorf("%s: %v in %s", where, err, query)
		return
	}
	given := []string{"job", "instance"} // by Prometheus
	for _, selectors := range parser.ExtractSelectors(expr) {
		var name string
		for _, m := range selectors {
			if m.Name == "__name__" {
				name = m.Value
			}
		}
		base := name
		if trimmed := regexp.MustCompile(`_(bucket|sum|count)$`).ReplaceAllString(name, ""); all[trimmed].help != "" {
			base, given = trimmed, append(given, "le")
		}
		if _, ok := all[base]; !ok && name != "up" {
			t.Errorf("%s: there is no metric %s", where, name)
		}
		given = append(given, all[base].labels...)
		for _, m := range selectors {
			if m.Name != "__name__" && !slices.Contains(append([]string{"job", "instance", "le"}, all[base].labels...), m.Name) {
				t.Errorf("%s: %s has no label %s", where, name, m.Name)
			}
		}
	}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		if by, ok := node.(*parser.AggregateExpr); ok {
			for _, label := range by.Grouping {
				if !slices.Contains(given, label) {
					t.Errorf("%s: nothing has the label %s", where, label)
				}
			}
		}
		return nil
	})
}

var labelOf = regexp.MustCompile(`\{\{ ?(?:\$labels\.)?(\w+) ?\}\}`)

// Every alert is valid, asks for what exists, and has its section in the runbook.
func TestAlerts(t *testing.T) {
	t.Parallel()
	var file struct {
		Groups []struct {
			Name  string
			Rules []struct {
				Alert, Expr, For    string
				Labels, Annotations map[string]string
			}
		}
	}
	if err := yaml.Unmarshal(readFile(t, "deploy/prometheus/alerts.yml"), &file); err != nil {
		t.Fatal(err)
	}
	all, runbook := registered(t), string(readFile(t, "docs/runbook.md"))
	sections := strings.Count(runbook, "\n## ")
	for _, group := range file.Groups {
		sections -= len(group.Rules)
		for _, rule := range group.Rules {
			checkQuery(t, all, rule.Alert, rule.Expr)
			if rule.Labels["severity"] == "" || rule.Annotations["summary"] == "" || rule.Annotations["description"] == "" {
				t.Errorf("%s lacks severity, summary or description", rule.Alert)
			}
			if rule.Annotations["runbook_url"] != "docs/runbook.md#"+strings.ToLower(rule.Alert) || !strings.Contains(runbook, "\n## "+rule.Alert+"\n") {
				t.Errorf("%s has no section in the runbook", rule.Alert)
			}
		}
	}
	if sections != 0 || len(file.Groups) == 0 {
		t.Errorf("the runbook has %d sections too many", sections)
	}
}

// Every panel of the dashboard asks for what exists.
func TestDashboard(t *testing.T) {
	t.Parallel()
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(readFile(t, "deploy/grafana/outboxd.json"), &board); err != nil {
		t.Fatal(err)
	}
	all := registered(t)
	shown := ""
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			checkQuery(t, all, panel.Title, target.Expr)
			shown += target.Expr + "\n"
			for _, label := range labelOf.FindAllStringSubmatch(target.LegendFormat, -1) {
				if label[1] != "instance" && !strings.Contains(target.Expr, label[1]) {
					t.Errorf("%s: the legend's %s is summed away", panel.Title, label[1])
				}
			}
		}
	}
	if len(board.Panels) == 0 || !strings.Contains(shown, "outboxd_") {
		t.Error("the dashboard shows nothing")
	}
}
