package providertest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/outboxd/outboxd/providers"
)

// Attributes of a test that calls [Run].
const (
	AttrName          = "provider"
	AttrKeyWindow     = "key_window"
	AttrFinalTimeout  = "final_timeout"
	AttrMaxBytes      = "max_bytes"
	AttrMaxRecipients = "max_recipients"
	AttrUTF8          = "utf8_local_part"
	AttrFinder        = "finder"
	AttrPreparer      = "preparer"
	// AttrDefinite is what the suite has found to be definite, per outcome.
	AttrDefinite = "definite"
)

// describe puts what an adapter says of itself into the test's attributes.
func describe(t *testing.T, s Suite) {
	t.Helper()
	p := newBench(t, s).provider
	c := p.Capabilities()
	_, finder := p.(providers.Finder)
	_, preparer := p.(providers.Preparer)
	t.Attr(AttrName, p.Name())
	t.Attr(AttrKeyWindow, c.KeyWindow.String())
	t.Attr(AttrFinalTimeout, c.FinalTimeout.String())
	t.Attr(AttrMaxBytes, strconv.Itoa(c.MaxBytes))
	t.Attr(AttrMaxRecipients, strconv.Itoa(c.MaxRecipients))
	t.Attr(AttrUTF8, strconv.FormatBool(c.UTF8LocalPart))
	t.Attr(AttrFinder, strconv.FormatBool(finder))
	t.Attr(AttrPreparer, strconv.FormatBool(preparer))
	t.Attr(AttrDefinite, definite(s.Definite))
}

// definite returns the table as text: "rejected 400, 404-406; deferred 429".
func definite(table map[int]providers.Outcome) string {
	byOutcome := map[providers.Outcome][]int{}
	for _, status := range slices.Sorted(maps.Keys(table)) {
		if outcome := table[status]; outcome != providers.InDoubt {
			byOutcome[outcome] = append(byOutcome[outcome], status)
		}
	}
	var parts []string
	for _, outcome := range slices.Sorted(maps.Keys(byOutcome)) {
		parts = append(parts, outcome.String()+" "+ranges(byOutcome[outcome]))
	}
	return strings.Join(parts, "; ")
}

// ranges returns sorted numbers, those in a row as first-last.
func ranges(numbers []int) string {
	var parts []string
	for i := 0; i < len(numbers); {
		last := i
		for last+1 < len(numbers) && numbers[last+1] == numbers[last]+1 {
			last++
		}
		part := strconv.Itoa(numbers[i])
		if last > i {
			part = fmt.Sprintf("%d-%d", numbers[i], numbers[last])
		}
		parts = append(parts, part)
		i = last + 1
	}
	return strings.Join(parts, ", ")
}
