package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/outboxd/outboxd/cmd/internal/doctor"
)

type doctorCmd struct {
	Strict bool `help:"Exit 1 for warnings too."`
	JSON   bool `help:"Print JSON."`
}

// Run examines the installation as an api or worker process with this environment
// would find it.
func (c doctorCmd) Run(e environment) error {
	if e.databaseURL == "" {
		return errNoDatabase
	}
	findings := doctor.Examine(e.ctx, append(os.Environ(), "DATABASE_URL="+e.databaseURL))
	if err := e.print(c.JSON, findings, describeFindings(findings)); err != nil {
		return err
	}
	return c.verdict(findings)
}

// verdict is what the exit code says.
func (c doctorCmd) verdict(findings []doctor.Finding) error {
	count := map[doctor.Verdict]int{}
	for _, f := range findings {
		count[f.Verdict]++
	}
	if count[doctor.Problem] > 0 || c.Strict && count[doctor.Warning] > 0 {
		return fmt.Errorf("problems: %d, warnings: %d", count[doctor.Problem], count[doctor.Warning])
	}
	return nil
}

func describeFindings(findings []doctor.Finding) string {
	var text strings.Builder
	for _, f := range findings {
		fmt.Fprintf(&text, "%-8s %-21s %s\n", f.Verdict, f.Check, f.Found)
		if f.Advice != "" {
			fmt.Fprintf(&text, "%30s %s\n", "->", f.Advice)
		}
	}
	return text.String()
}
