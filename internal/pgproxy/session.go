package pgproxy

import (
	"strings"

	"github.com/jackc/pgx/v5/pgproto3"
)

// session is what the messages of a connection tell about its transaction. It
// does not take apart a simple query that holds several statements.
type session struct {
	app string

	// SQL texts by the names that the extended protocol gives them.
	prepared, portals map[string]string

	statements []string // of the running transaction
	explicit   bool     // it was begun with BEGIN
	executed   bool     // something ran since the last Sync

	// Requests that end in a ReadyForQuery, and those that have.
	asked, answered int
}

func newSession(startup *pgproto3.StartupMessage) session {
	return session{
		app:      startup.Parameters["application_name"],
		prepared: map[string]string{}, portals: map[string]string{},
		asked: 1, // the start-up itself
	}
}

// request takes a message of the client and tells at which point it is.
func (s *session) request(m message) (Point, error) {
	switch m.kind() {
	case 'Q':
		var query pgproto3.Query
		err := query.Decode(m.body())
		s.asked++
		return s.simple(query.String), err
	case 'P':
		var parse pgproto3.Parse
		err := parse.Decode(m.body())
		s.prepared[parse.Name] = parse.Query
		return nowhere, err
	case 'B':
		var bind pgproto3.Bind
		err := bind.Decode(m.body())
		s.portals[bind.DestinationPortal] = s.prepared[bind.PreparedStatement]
		return nowhere, err
	case 'E':
		var execute pgproto3.Execute
		err := execute.Decode(m.body())
		s.executed = true
		return s.execute(s.portals[execute.Portal]), err
	case 'S':
		s.asked++
		return s.sync(), nil
	case 'F': // a function call
		s.asked++
	}
	return nowhere, nil
}

// execute notes a statement. COMMIT takes effect when it is executed; all else
// only at the Sync.
func (s *session) execute(sql string) Point {
	s.statements = append(s.statements, sql)
	switch command(sql) {
	case "begin", "start":
		s.explicit = true
	case "commit", "end":
		return Commit
	}
	return nowhere
}

func (s *session) simple(sql string) Point {
	if at := s.execute(sql); at != nowhere || s.explicit {
		return at
	}
	return Autocommit
}

func (s *session) sync() Point {
	executed := s.executed
	s.executed = false
	if !executed || s.explicit {
		return nowhere
	}
	return Autocommit
}

// passed says that the request at this point is on its way: what follows is
// another transaction.
func (s *session) passed(at Point) {
	if at != nowhere {
		s.statements, s.explicit, s.executed = nil, false, false
	}
}

// answer takes a message of the server. Where nothing else is on its way, the
// server's word on the state of the transaction corrects ours.
func (s *session) answer(m message) error {
	if m.kind() != 'Z' {
		return nil
	}
	var ready pgproto3.ReadyForQuery
	if err := ready.Decode(m.body()); err != nil {
		return err
	}
	s.answered++
	if s.answered == s.asked && !s.executed {
		s.explicit = ready.TxStatus != 'I'
		if !s.explicit {
			s.statements = nil
		}
	}
	return nil
}

// command is the first word of a statement.
func command(sql string) string {
	words := strings.Fields(sql)
	if len(words) == 0 {
		return ""
	}
	return strings.ToLower(strings.TrimRight(words[0], ";"))
}
