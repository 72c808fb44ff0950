package outbox

import (
	"crypto/sha256"
	"slices"

	"github.com/google/uuid"
)

// The kinds of search terms. A tag is found by its name and by name:value; names
// hold no colon.
const (
	termTo  = "to"
	termTag = "tag"
)

// searchTerm is what stands for a value that emails of an org are found by. The
// function enqueue_term computes the same.
func searchTerm(org uuid.UUID, kind, value string) (term uuid.UUID) {
	hash := sha256.New()
	_, _ = hash.Write([]byte("outbox term 1\n" + kind + "\n"))
	_, _ = hash.Write(org[:])
	_, _ = hash.Write([]byte(value))
	copy(term[:], hash.Sum(nil))
	return term
}

// searchTerms are all terms of an email, each once.
func searchTerms(org uuid.UUID, recipients []string, tags []Tag) []uuid.UUID {
	var terms []uuid.UUID
	add := func(kind, value string) {
		if term := searchTerm(org, kind, value); !slices.Contains(terms, term) {
			terms = append(terms, term)
		}
	}
	for _, address := range recipients {
		add(termTo, address)
	}
	for _, tag := range tags {
		add(termTag, tag.Name)
		add(termTag, tag.Name+":"+tag.Value)
	}
	return terms
}

const sqlInsertTerms = `
INSERT INTO outbox.email_terms (email_id, term) SELECT * FROM unnest($1::uuid[], $2::uuid[])`

// termColumns are the terms of emails as the table takes them.
func termColumns(emails []emailRow) []any {
	var ids, terms []uuid.UUID
	for _, e := range emails {
		for _, term := range searchTerms(e.org, e.recipients, e.message.Tags) {
			ids, terms = append(ids, e.id), append(terms, term)
		}
	}
	return []any{ids, terms}
}
