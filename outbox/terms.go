package outbox

import (
	"slices"

	"github.com/google/uuid"
)

// The kinds of search terms. A tag is found by its name and by name:value; names
// hold no colon.
const (
	termTo  = "to"
	termTag = "tag"
)

// searchTerm is what stands for a value that emails of an org are found by. Without
// a key, the function enqueue_term computes the same; with one, nobody can try out
// addresses who does not have it.
func searchTerm(key *sealKey, org uuid.UUID, kind, value string) (term uuid.UUID) {
	hash := key.termHash()
	_, _ = hash.Write([]byte("outbox term 1\n" + kind + "\n"))
	_, _ = hash.Write(org[:])
	_, _ = hash.Write([]byte(value))
	copy(term[:], hash.Sum(nil))
	return term
}

// searchTerms are all terms of an email, each once. Those of its addresses are under
// the key, if it is sealed; tags stay in clear, so theirs are not.
func searchTerms(key *sealKey, org uuid.UUID, recipients []string, tags []Tag) []uuid.UUID {
	var terms []uuid.UUID
	add := func(key *sealKey, kind, value string) {
		if term := searchTerm(key, org, kind, value); !slices.Contains(terms, term) {
			terms = append(terms, term)
		}
	}
	for _, address := range recipients {
		add(key, termTo, address)
	}
	for _, tag := range tags {
		add(nil, termTag, tag.Name)
		add(nil, termTag, tag.Name+":"+tag.Value)
	}
	return terms
}

const sqlInsertTerms = `
INSERT INTO outbox.email_terms (email_id, term) SELECT * FROM unnest($1::uuid[], $2::uuid[])`

// termColumns are the terms of emails as the table takes them.
func termColumns(key *sealKey, emails []emailRow) []any {
	var ids, terms []uuid.UUID
	for _, e := range emails {
		for _, term := range searchTerms(key, e.org, e.recipients, e.message.Tags) {
			ids, terms = append(ids, e.id), append(terms, term)
		}
	}
	return []any{ids, terms}
}
