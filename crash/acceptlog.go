package main

import (
	"bufio"
	"encoding/json"
	"os"
	"sync"
)

// acceptLog is the log of what the providers accepted, synced to disk before
// they answer.
type acceptLog struct {
	mu   sync.Mutex
	file *os.File
	// skip is how many lines of a cell belong to tries that did not count.
	skip map[string]int
}

func openAcceptLog(path string) (*acceptLog, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	return &acceptLog{file: f, skip: map[string]int{}}, nil
}

func (l *acceptLog) add(a Acceptance) error {
	line, err := json.Marshal(a)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, err := l.file.Write(append(line, '\n')); err != nil {
		return err
	}
	return l.file.Sync()
}

// of reads back what was accepted in a cell.
func (l *acceptLog) of(cell Cell) ([]Acceptance, error) {
	f, err := os.Open(l.file.Name())
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	var all []Acceptance
	scanner := bufio.NewScanner(f)
	for scanner.Scan() {
		var a Acceptance
		if err := json.Unmarshal(scanner.Bytes(), &a); err != nil {
			return nil, err
		}
		if a.Cell == cell.String() {
			all = append(all, a)
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return all[min(l.skip[cell.String()], len(all)):], nil
}

// forget makes what was accepted in a cell so far not count.
func (l *acceptLog) forget(cell Cell) {
	all, err := l.of(cell)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.skip[cell.String()] += len(all)
	}
}

func (l *acceptLog) close() error { return l.file.Close() }
