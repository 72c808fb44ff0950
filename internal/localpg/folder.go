package localpg

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// The names inside a data folder.
const (
	clusterName  = "cluster"     // what initdb makes
	unfinished   = "cluster.new" // the same until initdb has finished
	passwordName = "password"    // the superuser's, mode 0600
	lockName     = "lock"        // held by the owner and by all server processes
)

// lockPatience is how long a locked folder is waited for. The server of an
// owner that was just killed holds the lock until it has shut down.
const lockPatience = 3 * time.Second

// folder is a data folder that this process holds the lock of.
type folder struct {
	path      string
	temporary bool
	as        *account
	lock      *os.File
}

// openFolder creates the folder when it is missing, gives it to the server's
// user and locks it. Without a path it makes a temporary one.
func openFolder(ctx context.Context, opts Options, as *account) (*folder, error) {
	f := &folder{temporary: opts.DataDir == "", as: as}
	var err error
	if f.temporary {
		f.path, err = os.MkdirTemp(temporaryRoot(opts.Ephemeral), "outboxd-pg-")
	} else {
		f.path, err = ensureFolder(opts.DataDir)
	}
	if err != nil {
		return nil, err
	}
	// The lock comes first: files of a running server are not to change hands.
	err = f.acquire(ctx)
	if err == nil {
		err = f.handOver()
	}
	if err == nil {
		err = as.checkReach(f.path)
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// temporaryRoot is where temporary folders are made.
func temporaryRoot(ephemeral bool) string {
	if ephemeral && hasRoom(memory) {
		return memory
	}
	return os.TempDir()
}

const (
	// memory is where Linux has files that no disk has. A test's database is hundreds
	// of files that live for a second: opening them on a disk's file system was a tenth
	// of the processor time of package outbox's tests.
	memory = "/dev/shm"
	// memoryNeeded is what has to be free there: ten times what all tests take.
	memoryNeeded = 2 << 30
)

func hasRoom(dir string) bool {
	var fs syscall.Statfs_t
	return syscall.Statfs(dir, &fs) == nil && fs.Bavail*uint64(fs.Bsize) >= memoryNeeded
}

// ensureFolder creates the folder, private to its owner, and refuses one that
// holds something else: its owner is about to be changed.
func ensureFolder(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return "", err
	}
	if len(entries) > 0 && !exists(filepath.Join(path, lockName)) {
		return "", fmt.Errorf("data folder %s is not empty and was not made by outboxd: "+
			"choose an empty one", path)
	}
	return path, nil
}

// handOver gives the folder and what it holds to the server's user. What it
// holds may belong to somebody else when an earlier start was not by root.
func (f *folder) handOver() error {
	if f.as == nil {
		return nil
	}
	return filepath.WalkDir(f.path, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return f.as.own(path)
	})
}

// acquire locks the folder. The lock is on an open file that the server
// inherits, so it lasts until the last process that uses the data has ended.
func (f *folder) acquire(ctx context.Context) error {
	lock, err := os.OpenFile(f.file(lockName), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fmt.Errorf("data folder %s: %w (does it belong to another user?)", f.path, err)
	}
	if err := waitForLock(ctx, lock); err != nil {
		owner, _ := os.ReadFile(lock.Name()) // only for the message
		return errors.Join(fmt.Errorf("data folder %s is in use by another instance (process %s): %w",
			f.path, strings.TrimSpace(string(owner)), err), lock.Close())
	}
	f.lock = lock
	if err := lock.Truncate(0); err != nil {
		return err
	}
	_, err = lock.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func waitForLock(ctx context.Context, lock *os.File) error {
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// close releases the folder, and removes it when it is temporary. The server
// must have ended.
func (f *folder) close() error {
	var err error
	if f.lock != nil {
		err = f.lock.Close()
	}
	if f.temporary {
		err = errors.Join(err, os.RemoveAll(f.path))
	}
	return err
}

// postmaster returns the process number of the running server.
func (f *folder) postmaster() (int, error) {
	content, err := os.ReadFile(filepath.Join(f.file(clusterName), "postmaster.pid"))
	if err != nil {
		return 0, err
	}
	first, _, _ := strings.Cut(string(content), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil || pid <= 1 { // 0, 1 and less mean other things to kill(2)
		return 0, fmt.Errorf("postmaster.pid begins with %q", first)
	}
	return pid, nil
}

// file returns the path of one of the folder's own names.
func (f *folder) file(name string) string { return filepath.Join(f.path, name) }

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
