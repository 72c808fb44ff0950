package providers

import "strings"

// Mailbox returns a the way that services read an address in an object: a
// name-addr (RFC 5322, 3.4) with its name as it is, beyond ASCII too (RFC 6532).
// A name that would otherwise change what is read is quoted, and no other.
func (a Address) Mailbox() string {
	if a.Name == "" {
		return a.Email
	}
	name := a.Name
	if strings.ContainsAny(name, `()<>[]:;@\,."`) || strings.Contains(name, "=?") || strings.TrimSpace(name) != name {
		name = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(name) + `"`
	}
	return name + " <" + a.Email + ">"
}
