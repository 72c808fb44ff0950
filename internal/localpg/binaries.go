package localpg

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

// ErrNotFound means that this machine has no PostgreSQL server programs.
var ErrNotFound = errors.New("no PostgreSQL server found on this machine")

// installFolders are where packages put server programs without adding them
// to PATH.
var installFolders = []string{
	"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
	"/usr/pgsql-*/bin",          // Red Hat, from postgresql.org
	"/usr/local/pgsql/bin",      // built from source
	"/opt/homebrew/opt/postgresql*/bin",
	"/usr/local/opt/postgresql*/bin",
	"/Applications/Postgres.app/Contents/Versions/*/bin",
}

// Find returns the folder that holds the programs initdb and postgres. It asks
// pg_config, looks in PATH, and then in the usual install folders, where the
// highest version wins. Without any it returns ErrNotFound.
func Find() (binDir string, err error) {
	return find(os.Getenv("PATH"), installFolders)
}

func find(path string, patterns []string) (string, error) {
	candidates := append(fromPgConfig(path), filepath.SplitList(path)...)
	candidates = append(candidates, byVersion(patterns)...)
	for _, dir := range candidates {
		if hasServer(dir) {
			return realFolder(dir), nil
		}
	}
	return "", ErrNotFound
}

// fromPgConfig asks the first pg_config in the path. It may come with the
// client library alone, so its answer is only a candidate.
func fromPgConfig(path string) []string {
	for _, dir := range filepath.SplitList(path) {
		program := filepath.Join(dir, "pg_config")
		if !isProgram(program) {
			continue
		}
		out, err := exec.Command(program, "--bindir").Output()
		if err != nil {
			return nil
		}
		return []string{strings.TrimSpace(string(out))}
	}
	return nil
}

// byVersion expands the patterns, highest PostgreSQL version first.
func byVersion(patterns []string) []string {
	var dirs []string
	for _, pattern := range patterns {
		matches, _ := filepath.Glob(pattern) // fails only on a malformed pattern
		dirs = append(dirs, matches...)
	}
	slices.SortStableFunc(dirs, func(a, b string) int {
		return pathVersion(b) - pathVersion(a)
	})
	return dirs
}

var digits = regexp.MustCompile(`\d+`)

// pathVersion reads the major version in a path such as
// /usr/lib/postgresql/17/bin; a path that names none comes last.
func pathVersion(dir string) int {
	version, _ := strconv.Atoi(digits.FindString(filepath.Base(filepath.Dir(dir))))
	return version
}

func hasServer(dir string) bool {
	return isProgram(filepath.Join(dir, "initdb")) && isProgram(filepath.Join(dir, "postgres"))
}

func isProgram(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}

// realFolder follows symbolic links to where the programs lie, because
// PostgreSQL looks for its shared files from there.
func realFolder(dir string) string {
	program, err := filepath.EvalSymlinks(filepath.Join(dir, "postgres"))
	if err != nil || !hasServer(filepath.Dir(program)) {
		return dir
	}
	return filepath.Dir(program)
}

const (
	mavenCentral    = "https://repo1.maven.org/maven2"
	downloadVersion = embeddedpostgres.V17
)

// download fetches the server programs, unless an earlier call has, and
// returns their folder. The error is one line that says what to type.
func download(repository string) (binDir string, err error) {
	cache, err := cacheFolder()
	if err != nil {
		return "", downloadError(err)
	}
	home := filepath.Join(cache, "outboxd", "postgres-"+string(downloadVersion))
	binDir = filepath.Join(home, "bin")
	if hasServer(binDir) {
		return binDir, nil
	}
	if err := fetch(repository, home); err != nil {
		return "", downloadError(err)
	}
	return binDir, nil
}

func downloadError(err error) error {
	reason := strings.Join(strings.Fields(err.Error()), " ")
	return fmt.Errorf("no PostgreSQL found, and none could be downloaded (%s): "+
		"run `apt-get install postgresql`, or set DATABASE_URL", reason)
}

// fetch downloads into a temporary folder and renames it to home, so that a
// half-unpacked server is never taken for a whole one.
func fetch(repository, home string) error {
	if err := os.MkdirAll(filepath.Dir(home), 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(filepath.Dir(home), "download-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	port, err := choosePort(0)
	if err != nil {
		return err
	}
	unpacked := filepath.Join(work, "postgres")
	pg := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().
		Version(downloadVersion).
		BinaryRepositoryURL(repository).
		CachePath(filepath.Join(work, "archive")).
		BinariesPath(unpacked).
		RuntimePath(filepath.Join(work, "runtime")).
		Port(uint32(port)).
		Logger(io.Discard))
	// The library has no call that only downloads, so it also starts a server
	// of its own, which cannot work as root. What counts is whether the
	// programs have arrived.
	startErr := pg.Start()
	if startErr == nil {
		startErr = pg.Stop()
	}
	if !hasServer(filepath.Join(unpacked, "bin")) {
		return startErr
	}
	if err := os.Rename(unpacked, home); err != nil && !hasServer(filepath.Join(home, "bin")) {
		return err // and not because another process was faster
	}
	return nil
}

// cacheFolder is a place that the server's user can reach; root's home is not.
func cacheFolder() (string, error) {
	if os.Geteuid() == 0 {
		return "/var/cache", nil
	}
	return os.UserCacheDir()
}
