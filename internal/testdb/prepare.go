package testdb

import (
	"context"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"strings"
	"testing"
)

// PrepareSQL has the server prepare every constant of the package in the
// test's folder whose name begins with sql, so that no statement can name a
// column that is gone. It fails if there is none.
func PrepareSQL(t *testing.T) {
	t.Helper()
	statements, err := sqlConstants(".")
	if err != nil {
		t.Fatal(err)
	}
	if len(statements) == 0 {
		t.Fatal("no constant begins with sql")
	}
	tx := Tx(t)
	for name, statement := range statements {
		savepoint, err := tx.Begin(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := savepoint.Prepare(context.Background(), name, statement); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := savepoint.Rollback(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

// sqlConstants evaluates the constants of a package from its source.
func sqlConstants(dir string) (map[string]string, error) {
	files := token.NewFileSet()
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var parsed []*ast.File
	for _, entry := range entries {
		name := entry.Name()
		if !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, dir+"/"+name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse: %w", err)
		}
		parsed = append(parsed, file)
	}
	info := &types.Info{Defs: map[*ast.Ident]types.Object{}}
	// Imports are not resolved, so there are errors; constants need none.
	checker := types.Config{Error: func(error) {}, Importer: nil}
	_, _ = checker.Check("p", files, parsed, info)

	statements := map[string]string{}
	for name, object := range info.Defs {
		c, ok := object.(*types.Const)
		if ok && strings.HasPrefix(name.Name, "sql") && c.Val().Kind() == constant.String {
			statements[name.Name] = constant.StringVal(c.Val())
		}
	}
	return statements, nil
}
