// Package outboxd_test checks what stands around the code: the import wall, as
// it is really linked, and the files that containers are made from.
package outboxd_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

const (
	module    = "github.com/outboxd/outboxd"
	providers = module + "/providers"
)

// listed is what `go list` says about one package.
type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string // direct
	Deps       []string // transitive
}

func (p listed) ours() bool { return isOrBelow(p.ImportPath, module) }

func isOrBelow(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}

// list asks Go once for every package of the module and all that they link, by
// path. Tests are not part of it.
var list = sync.OnceValues(func() (map[string]listed, error) {
	out, err := goCommand("list", "-deps", "-json=ImportPath,Standard,Imports,Deps", "./...")
	if err != nil {
		return nil, err
	}
	packages := make(map[string]listed)
	for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
		var p listed
		if err := d.Decode(&p); err != nil {
			return nil, err
		}
		packages[p.ImportPath] = p
	}
	return packages, nil
})

func graph(t *testing.T) map[string]listed {
	t.Helper()
	packages, err := list()
	if err != nil {
		t.Fatal(err)
	}
	return packages
}

func goCommand(args ...string) ([]byte, error) {
	cmd := exec.Command("go", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, &stderr)
	}
	return out, nil
}

// The linter checks what a file imports; this checks what a package links.
func TestImportWall(t *testing.T) {
	t.Parallel()
	packages := graph(t)

	for _, wall := range []struct {
		pkg     string
		mayLink []string // packages of ours, and those below them
	}{
		{pkg: module + "/outbox", mayLink: []string{module + "/outbox", module + "/internal/fault", module + "/internal/redact"}},
		{pkg: module + "/api", mayLink: []string{module + "/api", module + "/outbox", module + "/internal/fault", module + "/internal/redact"}},
		{pkg: module + "/migrations", mayLink: []string{module + "/migrations"}},
		// An application that enqueues links no adapter and none of our programs.
		// A third party's adapter needs the contract and nothing else.
		{pkg: module + "/examples/mailpace", mayLink: []string{module + "/examples/mailpace"}},
		{pkg: module + "/examples/go-order", mayLink: []string{module + "/outbox", module + "/internal/fault", module + "/internal/redact"}},
	} {
		p, ok := packages[wall.pkg]
		if !ok {
			t.Errorf("%s: no such package", wall.pkg)
			continue
		}
		for _, dep := range p.Deps {
			allowed := dep == providers || slices.ContainsFunc(wall.mayLink, func(root string) bool { return isOrBelow(dep, root) })
			if packages[dep].ours() && !allowed {
				t.Errorf("%s links %s", wall.pkg, dep)
			}
		}
	}
}

// An application that makes no traces links no exporter of them.
func TestLibrariesLinkNoTraceSDK(t *testing.T) {
	t.Parallel()
	packages := graph(t)
	const otel = "go.opentelemetry.io/otel"
	for _, path := range []string{module + "/outbox", module + "/api"} {
		if !slices.Contains(packages[path].Deps, otel+"/trace") {
			t.Errorf("%s makes no traces", path)
		}
		for _, dep := range packages[path].Deps {
			if isOrBelow(dep, otel+"/sdk") || isOrBelow(dep, otel+"/exporters") {
				t.Errorf("%s links %s", path, dep)
			}
		}
	}
}

func TestProvidersLinksOnlyTheStandardLibrary(t *testing.T) {
	t.Parallel()
	packages := graph(t)
	p, ok := packages[providers]
	if !ok {
		t.Fatalf("%s: no such package", providers)
	}
	for _, dep := range p.Deps {
		if !packages[dep].Standard {
			t.Errorf("%s links %s", providers, dep)
		}
	}
}

// So that anybody can write an adapter without a database driver or a queue.
func TestAdaptersStandAlone(t *testing.T) {
	t.Parallel()
	packages := graph(t)
	for path, p := range packages {
		if !strings.HasPrefix(path, providers+"/") {
			continue
		}
		for _, dep := range p.Deps {
			ours := packages[dep].ours() && dep != providers &&
				!isOrBelow(dep, providers+"/internal") && !isOrBelow(dep, path)
			if ours || isOrBelow(dep, "github.com/jackc/pgx/v5") || isOrBelow(dep, "github.com/riverqueue/river") {
				t.Errorf("%s links %s", path, dep)
			}
		}
	}
}

func TestOnlyProgramsImportAPIAndAdapters(t *testing.T) {
	t.Parallel()
	for path, p := range graph(t) {
		if !p.ours() || isOrBelow(path, module+"/cmd") {
			continue
		}
		for _, dep := range p.Imports {
			api := isOrBelow(dep, module+"/api") && !isOrBelow(path, module+"/api")
			adapter := strings.HasPrefix(dep, providers+"/") && !isOrBelow(path, providers) &&
				dep != providers+"/providertest"
			measures := isOrBelow(path, module+"/bench") || isOrBelow(path, module+"/crash")
			if adapter || api && !measures {
				t.Errorf("%s imports %s", path, dep)
			}
		}
	}
}

// programs are the names of the folders in cmd that hold a program.
func programs(t *testing.T) []string {
	t.Helper()
	mains, err := filepath.Glob("cmd/*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	names := make([]string, 0, len(mains))
	for _, path := range mains {
		names = append(names, filepath.Base(filepath.Dir(path)))
	}
	if len(names) == 0 {
		t.Fatal("no programs in cmd")
	}
	return names
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// instructions are the lines of a Dockerfile's stages, continuations joined,
// comments gone.
func instructions(t *testing.T) (stages [][]string) {
	t.Helper()
	text := regexp.MustCompile(`(?m)^\s*#.*\n`).ReplaceAllString(read(t, "Dockerfile"), "")
	text = regexp.MustCompile(`\\\n\s*`).ReplaceAllString(text, "")
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "FROM ") {
			stages = append(stages, nil)
		}
		if len(stages) > 0 && line != "" {
			stages[len(stages)-1] = append(stages[len(stages)-1], line)
		}
	}
	return stages
}

func TestDockerfile(t *testing.T) {
	t.Parallel()
	stages := instructions(t)
	if len(stages) != 2 {
		t.Fatalf("%d stages, want 2", len(stages))
	}
	build, final := strings.Join(stages[0], "\n"), stages[1]

	for _, want := range []string{"CGO_ENABLED=0", "-trimpath", "ARG VERSION"} {
		if !strings.Contains(build, want) {
			t.Errorf("the build stage lacks %s", want)
		}
	}
	if final[0] != "FROM scratch" {
		t.Errorf("the final stage is %q, want nothing but our files", final[0])
	}
	copied := ""
	user := ""
	for _, line := range final {
		if strings.HasPrefix(line, "RUN ") {
			t.Errorf("%q: there is no shell", line)
		}
		if strings.HasPrefix(line, "COPY --from=build ") && strings.HasSuffix(line, " /usr/local/bin/") {
			copied = line
		}
		if after, ok := strings.CutPrefix(line, "USER "); ok {
			user = after
		}
	}
	if !regexp.MustCompile(`^[1-9]\d*:[1-9]\d*$`).MatchString(user) {
		t.Errorf("USER %q: a number that is not root's, so that Kubernetes can check it", user)
	}
	for _, program := range programs(t) {
		if !strings.Contains(build, " ./cmd/"+program) || !strings.Contains(copied, " /out/"+program+" ") {
			t.Errorf("%s is not in the image", program)
		}
	}
	if !strings.Contains(strings.Join(final, "\n"), "/etc/ssl/certs/ca-certificates.crt") {
		t.Error("no certificates: providers could not be reached")
	}
}

// One Go, one version variable, wherever the programs are built.
func TestBuildsAgree(t *testing.T) {
	t.Parallel()
	dockerfile, makefile := read(t, "Dockerfile"), read(t, "Makefile")

	goMod := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, "go.mod"))
	if goMod == nil || !strings.Contains(dockerfile, "GO_VERSION="+goMod[1]+"\n") {
		t.Errorf("go.mod and Dockerfile name different versions of Go: %q", goMod)
	}

	variable := regexp.MustCompile(`-X ` + module + `/([\w/]+)\.(\w+)=`)
	inDocker, inMake := variable.FindStringSubmatch(dockerfile), variable.FindStringSubmatch(makefile)
	if inDocker == nil || inMake == nil || inDocker[0] != inMake[0] {
		t.Fatalf("Dockerfile sets %q, Makefile %q", inDocker, inMake)
	}
	if !declares(t, inMake[1], inMake[2]) {
		t.Errorf("%s declares no variable %s, so the linker would set nothing", inMake[1], inMake[2])
	}
}

// declares says whether the package in a folder has a variable of that name.
func declares(t *testing.T, folder, variable string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, decl := range file.Decls {
			vars, ok := decl.(*ast.GenDecl)
			if !ok || vars.Tok != token.VAR {
				continue
			}
			for _, spec := range vars.Specs {
				for _, name := range spec.(*ast.ValueSpec).Names {
					if name.Name == variable {
						return true
					}
				}
			}
		}
	}
	return false
}

// The build context holds every folder that the programs are built from.
func TestDockerignore(t *testing.T) {
	t.Parallel()
	ignore := strings.Split(read(t, ".dockerignore"), "\n")
	for _, file := range []string{"go.mod", "go.sum", "LICENSE"} {
		if !slices.Contains(ignore, "!/"+file) {
			t.Errorf("%s does not reach the build", file)
		}
	}
	packages := graph(t)
	linked := make(map[string]bool)
	for _, program := range programs(t) {
		for _, dep := range append(packages[module+"/cmd/"+program].Deps, module+"/cmd/"+program) {
			if top, ok := strings.CutPrefix(dep, module+"/"); ok {
				top, _, _ = strings.Cut(top, "/")
				linked[top] = true
			}
		}
	}
	for folder := range linked {
		if !slices.Contains(ignore, "!/"+folder) {
			t.Errorf("folder %s does not reach the build", folder)
		}
	}
}
