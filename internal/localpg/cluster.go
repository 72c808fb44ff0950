package localpg

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// cluster is the data of one server in its folder, with the programs that
// read it.
type cluster struct {
	binDir    string
	folder    *folder
	ephemeral bool
	log       io.Writer
}

// prepare makes the data when there is none yet, checks that these programs
// can read it, and returns the superuser's password.
func (c cluster) prepare(ctx context.Context) (password string, err error) {
	if err := c.folder.as.checkReach(c.binDir); err != nil {
		return "", err
	}
	version, err := os.ReadFile(filepath.Join(c.folder.file(clusterName), "PG_VERSION"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := c.initialise(ctx); err != nil {
			return "", err
		}
	case err != nil:
		return "", err
	default:
		if err := c.checkVersion(ctx, strings.TrimSpace(string(version))); err != nil {
			return "", err
		}
	}
	stored, err := os.ReadFile(c.folder.file(passwordName))
	if err != nil {
		return "", fmt.Errorf("the password of data folder %s: %w", c.folder.path, err)
	}
	return strings.TrimSpace(string(stored)), nil
}

// initialise runs initdb beside the final place and renames the result, so
// that one that was killed half-way is made again and never started.
func (c cluster) initialise(ctx context.Context) error {
	target := c.folder.file(unfinished)
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	if err := c.keepPassword(rand.Text()); err != nil {
		return err
	}
	args := []string{
		"--pgdata", target,
		"--username", superuser,
		"--auth", c.auth(),
		"--pwfile", c.folder.file(passwordName),
		"--encoding", "UTF8",
		"--no-locale", // the same order of text on every machine
	}
	if c.ephemeral {
		args = append(args, "--no-sync")
	}
	if err := c.run(ctx, "initdb", args...); err != nil {
		return err
	}
	return os.Rename(target, c.folder.file(clusterName))
}

// auth is how the server asks for its password. Clients pay milliseconds of processor
// time for each connection under SCRAM, and tests make thousands.
func (c cluster) auth() string {
	if c.ephemeral {
		return "md5"
	}
	return "scram-sha-256"
}

// keepPassword stores the superuser's password beside the data.
func (c cluster) keepPassword(password string) error {
	file := c.folder.file(passwordName)
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		return err
	}
	return c.folder.as.own(file)
}

var versionPattern = regexp.MustCompile(`\(PostgreSQL\) (\d+)`)

// checkVersion compares the major version that made the data with that of the
// programs: PostgreSQL does not read another one's files.
func (c cluster) checkVersion(ctx context.Context, data string) error {
	out, err := c.command(ctx, "postgres", "--version").Output()
	if err != nil {
		return fmt.Errorf("postgres --version: %w", err)
	}
	match := versionPattern.FindSubmatch(out)
	if match == nil {
		return fmt.Errorf("postgres --version: cannot read %q", out)
	}
	if programs := string(match[1]); programs != data {
		return fmt.Errorf("data folder %s was made by PostgreSQL %s, and this machine has PostgreSQL %s: "+
			"install version %s, or start with another folder", c.folder.path, data, programs, data)
	}
	return nil
}

// run runs one of PostgreSQL's programs to its end; its error holds the last
// lines that it printed.
func (c cluster) run(ctx context.Context, program string, args ...string) error {
	var out tail
	cmd := c.command(ctx, program, args...)
	cmd.Stdout = io.MultiWriter(c.log, &out)
	cmd.Stderr = cmd.Stdout
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", program, errors.Join(ctx.Err(), err), out.String())
	}
	return nil
}

// program is the path of one of PostgreSQL's programs.
func (c cluster) program(name string) string { return filepath.Join(c.binDir, name) }

func (c cluster) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, c.program(program), args...)
	cmd.Dir = "/" // the caller's folder may be closed to the server's user
	cmd.Env = serverEnv()
	if c.ephemeral {
		// Huge pages, where the kernel gives them for the asking: the many processes
		// that live for one test spend much of their time on taking memory page by page.
		cmd.Env = append(cmd.Env, "GLIBC_TUNABLES=glibc.malloc.hugetlb=1")
	}
	cmd.SysProcAttr = c.folder.as.sysProcAttr()
	cmd.WaitDelay = 5 * time.Second // for a canceled initdb's own children
	return cmd
}

// settings are given on the command line, which outranks files that an older
// version of this package may have left in the data.
func (c cluster) settings(port int) []string {
	settings := []string{
		"listen_addresses=127.0.0.1",
		"port=" + strconv.Itoa(port),
		"unix_socket_directories=", // none: the password guards the only door
		"max_connections=200",
		"timezone=UTC",
		"log_timezone=UTC",
	}
	if c.ephemeral {
		settings = append(settings, "fsync=off", "synchronous_commit=off", "full_page_writes=off",
			"autovacuum_naptime=1d") // or it looks through hundreds of databases that live for seconds
	}
	return settings
}
