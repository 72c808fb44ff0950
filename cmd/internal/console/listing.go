package console

import (
	"fmt"
	"strings"
	"time"

	"github.com/outboxd/outboxd/outbox"
)

// listingView is a table of emails.
type listingView struct {
	Emails  []outbox.Listing
	Caption string
	// Found shows what each was found by.
	Found bool
	Now   time.Time
}

func listingOf(emails []outbox.Listing, caption string, found bool, now time.Time) listingView {
	return listingView{emails, caption, found, now}
}

// recipientsOf is to whom an email goes, in short.
func recipientsOf(l outbox.Listing) string { return shortList(l.Message.To) }

// shortList is the first of some, and how many more there are.
func shortList(list []string) string {
	const most = 2
	if len(list) <= most {
		return strings.Join(list, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
}

// whenView is a time beside the one that it is told from.
type whenView struct{ At, Now time.Time }

func whenOf(at, now time.Time) whenView { return whenView{at, now} }
