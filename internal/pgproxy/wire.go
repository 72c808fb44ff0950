package pgproxy

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5/pgproto3"
)

const (
	headerSize = 5 // kind and length
	// maxMessage is PostgreSQL's own bound; beyond it the stream is not the
	// protocol.
	maxMessage = 1 << 30
	maxStartup = 10_000

	noTLS = 'N'
)

// message is one message as it came, with its header, so that it goes on
// unchanged.
type message []byte

func (m message) kind() byte   { return m[0] }
func (m message) body() []byte { return m[headerSize:] }

func readMessage(r *bufio.Reader) (message, error) {
	header, err := r.Peek(headerSize)
	if err != nil {
		return nil, err
	}
	return readFull(r, 1, binary.BigEndian.Uint32(header[1:]), maxMessage)
}

// buffered reports whether a whole message can be read without waiting.
func buffered(r *bufio.Reader) bool {
	if r.Buffered() < headerSize {
		return false
	}
	header, _ := r.Peek(headerSize) // it is there
	return uint64(r.Buffered()) > uint64(binary.BigEndian.Uint32(header[1:]))
}

// readFull reads a message whose length, which does not count the kind before
// it, is known.
func readFull(r io.Reader, kind int, length, limit uint32) (message, error) {
	if length < 4 || length > limit {
		return nil, fmt.Errorf("pgproxy: a message of %d bytes", length)
	}
	m := make(message, kind+int(length))
	_, err := io.ReadFull(r, m)
	return m, err
}

// readStartup reads the first message of a connection, which has no kind, and
// tells clients that ask for encryption that there is none.
func readStartup(r *bufio.Reader, w io.Writer) (message, pgproto3.FrontendMessage, error) {
	for {
		header, err := r.Peek(8)
		if err != nil {
			return nil, nil, err
		}
		m, err := readFull(r, 0, binary.BigEndian.Uint32(header), maxStartup)
		if err != nil {
			return nil, nil, err
		}
		first, err := pgproto3.NewBackend(bytes.NewReader(m), io.Discard).ReceiveStartupMessage()
		if err != nil {
			return nil, nil, err
		}
		switch first.(type) {
		case *pgproto3.SSLRequest, *pgproto3.GSSEncRequest:
			if _, err := w.Write([]byte{noTLS}); err != nil {
				return nil, nil, err
			}
		default:
			return m, first, nil
		}
	}
}
