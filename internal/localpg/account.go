package localpg

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// account is the ordinary user that the server's programs run as when this
// process is root. Nil means this process's own user.
type account struct {
	name     string
	uid, gid uint32
}

// serverAccount returns nil for an ordinary user. For root it is the user
// postgres, which every distribution's package makes, or else nobody.
func serverAccount() (*account, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uidErr, gidErr); err != nil {
			return nil, fmt.Errorf("user %s: %w", name, err)
		}
		return &account{name: name, uid: uint32(uid), gid: uint32(gid)}, nil
	}
	return nil, errors.New("PostgreSQL refuses to run as root, and this machine has neither " +
		"a user postgres nor a user nobody: run as an ordinary user")
}

// sysProcAttr makes a program run as this account in a process group of its
// own, so that Ctrl-C in a terminal reaches this process and not the server
// behind its back.
func (a *account) sysProcAttr() *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{Setpgid: true}
	if a != nil {
		attr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid}
	}
	return attr
}

// own gives a file or folder to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Lchown(path, int(a.uid), int(a.gid))
}

// reachScript prints the first of its arguments that its user cannot enter.
const reachScript = `for d; do [ -x "$d" ] || { printf %s "$d"; exit; }; done`

// checkReach reports the folder on the way to path that the account may not
// pass. The kernel is asked, as that user, because modes alone do not tell
// about access lists and mounts.
func (a *account) checkReach(path string) error {
	if a == nil {
		return nil
	}
	args := []string{"-c", reachScript, "sh"}
	args = append(args, ancestors(path)...)
	cmd := exec.Command("/bin/sh", args...)
	cmd.Dir = "/"
	cmd.Env = serverEnv()
	cmd.SysProcAttr = a.sysProcAttr()
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("running as user %s: %w: %s", a.name, err, strings.TrimSpace(string(out)))
	}
	if len(out) > 0 {
		return fmt.Errorf("PostgreSQL runs as user %s when started by root, and that user may not "+
			"enter %s on the way to %s: choose another place", a.name, out, path)
	}
	return nil
}

// ancestors lists the path's folders from the root down to itself.
func ancestors(path string) []string {
	var dirs []string
	for dir := path; ; dir = filepath.Dir(dir) {
		dirs = append([]string{dir}, dirs...)
		if dir == filepath.Dir(dir) {
			return dirs
		}
	}
}

// serverEnv is the environment of the server's programs: no PG* variable of
// the caller's can redirect them, their messages are in English, and none of
// the caller's secrets is handed to another user.
func serverEnv() []string {
	env := []string{"LC_ALL=C", "LANG=C"}
	for _, name := range []string{"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"} {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return env
}
