package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// patch is a change of one source file, which go build takes in place of the
// real one. No file of the tree is touched.
type patch struct {
	// file is relative to the module's root, or absolute.
	file  string
	edits []edit
}

type edit struct{ old, new string }

// overlay writes the changed files of patches and the list of replacements for
// go build. Their names begin with path.
func overlay(ctx context.Context, path string, patches ...patch) (list string, err error) {
	root, err := moduleRoot(ctx)
	if err != nil {
		return "", err
	}
	replace := map[string]string{}
	for i, p := range patches {
		source := filepath.FromSlash(p.file)
		if !filepath.IsAbs(source) {
			source = filepath.Join(root, source)
		}
		text, err := os.ReadFile(source)
		if err != nil {
			return "", err
		}
		changed, err := p.apply(string(text))
		if err != nil {
			return "", err
		}
		replace[source] = fmt.Sprintf("%s-%d.go", path, i)
		if err := os.WriteFile(replace[source], []byte(changed), 0o600); err != nil {
			return "", err
		}
	}
	content, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	list = path + ".json"
	return list, os.WriteFile(list, content, 0o600)
}

// apply makes the edits. Each must fit exactly once: a patch that no longer
// fits the source would show nothing.
func (p patch) apply(text string) (string, error) {
	for _, e := range p.edits {
		if n := strings.Count(text, e.old); n != 1 {
			return "", fmt.Errorf("%q is %d times in %s", e.old, n, p.file)
		}
		text = strings.Replace(text, e.old, e.new, 1)
	}
	return text, nil
}
