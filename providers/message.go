package providers

// Message is an email in the form that adapters render: checked, addresses
// parsed, duplicates gone, no control character in anything that becomes a
// header.
type Message struct {
	From    Address
	To      []Address
	Cc      []Address
	Bcc     []Address
	ReplyTo []Address

	Subject string
	HTML    string
	Text    string

	// Headers are the sender's own, ordered by name so that rendering is
	// deterministic.
	Headers     []Header
	Attachments []Attachment
	Tags        []Tag
}

// Address is a mailbox. The domain of Email is in its ASCII form (A-labels).
type Address struct {
	Name  string
	Email string
}

// Header is one header field of the sender's own.
type Header struct {
	Name  string
	Value string
}

// Attachment is a file, or an inline part when ContentID is set.
type Attachment struct {
	Filename    string
	ContentType string
	// ContentID without angle brackets makes the part inline: the HTML refers
	// to it as cid:<ContentID>.
	ContentID string
	Content   []byte
}

// Name returns the file's name; for an inline part without one, which is shown
// in its place and not by its name, the content id.
func (a Attachment) Name() string {
	if a.Filename == "" {
		return a.ContentID
	}
	return a.Filename
}

// Tag is a label that the provider reports back and aggregates by.
type Tag struct {
	Name  string
	Value string
}
