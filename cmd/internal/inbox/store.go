package inbox

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"
)

const (
	// maxMemoryBytes bounds an inbox without a folder, whatever its number of
	// messages.
	maxMemoryBytes = 256 << 20

	fileSuffix = ".eml"
	tempSuffix = ".tmp"
	// envelopeHeader is the first line of a file. It holds what the message
	// does not say about itself and is taken off again when it is read.
	envelopeHeader = "X-Outboxd-Inbox: "
)

// errNotFound means that there is no message of that id (any more).
var errNotFound = errors.New("no such message")

// envelope is what the sender said over SMTP, which is what counts for
// delivery: the message's own From and To are only text.
type envelope struct {
	From string   `json:"from"`
	To   []string `json:"to"`
}

// entry is one message in the store.
type entry struct {
	summary
	raw []byte // nil when it is in a file
}

// store keeps messages, oldest first, in memory or in a folder.
type store struct {
	dir      string
	max      int
	maxBytes int // in memory

	mu      sync.Mutex
	entries []*entry
	bytes   int // held in memory
}

func openStore(dir string, limit int) (*store, error) {
	s := &store{dir: dir, max: limit, maxBytes: maxMemoryBytes}
	if dir == "" {
		return s, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	files, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		path := filepath.Join(dir, file.Name())
		if strings.HasSuffix(path, tempSuffix) {
			// A message that was never acknowledged.
			if err := os.Remove(path); err != nil {
				return nil, err
			}
			continue
		}
		id, ok := strings.CutSuffix(file.Name(), fileSuffix)
		if !ok {
			continue
		}
		e, err := loadEntry(id, path)
		if err != nil {
			return nil, err
		}
		s.insert(e)
	}
	return s, s.evict()
}

func loadEntry(id, path string) (*entry, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	label, raw := splitFile(content)
	if label.ReceivedAt.IsZero() {
		label.ReceivedAt = info.ModTime() // a file that somebody put there
	}
	return &entry{summary: summarise(id, label, raw)}, nil
}

// label is the content of a file's first line.
type label struct {
	envelope
	ReceivedAt time.Time `json:"received_at"`
}

// splitFile takes our own first line off a file's content.
func splitFile(content []byte) (l label, raw []byte) {
	line, rest, found := bytes.Cut(content, []byte("\r\n"))
	data, ours := bytes.CutPrefix(line, []byte(envelopeHeader))
	if !found || !ours || json.Unmarshal(data, &l) != nil {
		return label{}, content
	}
	return l, rest
}

// add stores a message. When it returns nil, the message survives a crash of
// the machine if the store has a folder.
func (s *store) add(env envelope, raw []byte) error {
	id, err := uuid.NewV7() // in order of time
	if err != nil {
		return err
	}
	l := label{envelope: env, ReceivedAt: time.Now().UTC()}
	e := &entry{summary: summarise(id.String(), l, raw)}
	if s.dir == "" {
		e.raw = raw
	} else if err := s.write(e.ID, l, raw); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.insert(e)
	return s.evict()
}

// write puts the message in a file under another name, and gives it its own
// when it is whole and on disk.
func (s *store) write(id string, l label, raw []byte) error {
	header, err := json.Marshal(l)
	if err != nil {
		return err
	}
	path := s.path(id)
	f, err := os.OpenFile(path+tempSuffix, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	for _, part := range [][]byte{[]byte(envelopeHeader), header, []byte("\r\n"), raw} {
		if err == nil {
			_, err = f.Write(part)
		}
	}
	if err == nil {
		err = f.Sync()
	}
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(path+tempSuffix, path)
	}
	if err != nil {
		return errors.Join(err, ignoreNotExist(os.Remove(path+tempSuffix)))
	}
	return syncFolder(s.dir)
}

func syncFolder(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// insert keeps the order by id: messages that arrive together may have been
// written in another order.
func (s *store) insert(e *entry) {
	at, _ := slices.BinarySearchFunc(s.entries, e.ID, func(e *entry, id string) int {
		return cmp.Compare(e.ID, id)
	})
	s.entries = slices.Insert(s.entries, at, e)
	s.bytes += len(e.raw)
}

// evict drops the oldest messages beyond the limits.
func (s *store) evict() error {
	var extra int
	held := s.bytes
	for extra < len(s.entries)-1 && (len(s.entries)-extra > s.max || held > s.maxBytes) {
		held -= len(s.entries[extra].raw)
		extra++
	}
	return s.remove(extra)
}

// remove drops the n oldest messages.
func (s *store) remove(n int) error {
	for _, e := range s.entries[:n] {
		if s.dir != "" {
			if err := ignoreNotExist(os.Remove(s.path(e.ID))); err != nil {
				return err
			}
		}
		s.bytes -= len(e.raw)
	}
	s.entries = slices.Delete(s.entries, 0, n)
	return nil
}

// clear drops all messages.
func (s *store) clear() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.remove(len(s.entries))
}

// list returns all messages, newest first.
func (s *store) list() []summary {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]summary, 0, len(s.entries))
	for _, e := range slices.Backward(s.entries) {
		list = append(list, e.summary)
	}
	return list
}

// get returns a message and its bytes as they were received.
func (s *store) get(id string) (summary, []byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, found := slices.BinarySearchFunc(s.entries, id, func(e *entry, id string) int {
		return cmp.Compare(e.ID, id)
	})
	if !found {
		return summary{}, nil, errNotFound
	}
	e := s.entries[at]
	if s.dir == "" {
		return e.summary, e.raw, nil
	}
	content, err := os.ReadFile(s.path(id))
	if errors.Is(err, fs.ErrNotExist) {
		return summary{}, nil, fmt.Errorf("%w: its file was removed", errNotFound)
	}
	_, raw := splitFile(content)
	return e.summary, raw, err
}

// path is only called with ids of our own or of files found in the folder.
func (s *store) path(id string) string { return filepath.Join(s.dir, id+fileSuffix) }

func ignoreNotExist(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
