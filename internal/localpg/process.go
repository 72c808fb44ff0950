package localpg

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// errExited means that the server ended before it answered.
var errExited = errors.New("the server ended at once")

// watchdog runs the command in its arguments and ends it, by a fast shutdown,
// when its own standard input closes. The other end of that pipe is held by
// the process that called Start alone, so the kernel closes it whatever that
// process dies of. OUTBOXD_REMOVE names a temporary folder to remove then.
//
// The watcher is told to stop when the server ends by itself, so that it can
// never signal a later process with the same number. Descriptor 3 is the
// folder's lock, which the server keeps open on purpose.
const watchdog = `
exec 4<&0
"$@" 4<&- &
server=$!
{ read -r _; kill -INT "$server"; } <&4 3>&- >/dev/null 2>&1 &
watcher=$!
exec 4<&-
wait "$server"
status=$?
kill "$watcher" 2>/dev/null
[ -z "$OUTBOXD_REMOVE" ] || rm -rf -- "$OUTBOXD_REMOVE"
exit "$status"
`

// process is a running server under its watchdog.
type process struct {
	cmd   *exec.Cmd
	leash io.Closer // the pipe whose end means shutdown
	out   *tail
	done  chan struct{} // closed when all of it has ended
	err   error         // how it ended; read after done
}

// launch starts the server under the watchdog.
func (c cluster) launch(port int) (*process, error) {
	args := []string{
		"-c", watchdog, "outboxd-postgres",
		c.program("postgres"), "-D", c.folder.file(clusterName),
	}
	for _, setting := range c.settings(port) {
		args = append(args, "-c", setting)
	}
	p := &process{cmd: exec.Command("/bin/sh", args...), out: &tail{}, done: make(chan struct{})}
	p.cmd.Dir = "/"
	p.cmd.Env = serverEnv()
	if c.folder.temporary {
		p.cmd.Env = append(p.cmd.Env, "OUTBOXD_REMOVE="+c.folder.path)
	}
	p.cmd.SysProcAttr = c.folder.as.sysProcAttr()
	p.cmd.ExtraFiles = []*os.File{c.folder.lock}
	p.cmd.Stdout = io.MultiWriter(c.log, p.out)
	p.cmd.Stderr = p.cmd.Stdout
	p.cmd.WaitDelay = 5 * time.Second

	leash, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.leash = leash
	if err := p.cmd.Start(); err != nil {
		return nil, errors.Join(err, leash.Close())
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// awaitReady returns when a client can connect. A stranger that has taken the
// port does not know the password, so it is never mistaken for the server.
func (p *process) awaitReady(ctx context.Context, url string) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := ping(ctx, url)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return errExited // stop tells how
		case <-ctx.Done():
			return fmt.Errorf("waiting for the server: %w (%w)", ctx.Err(), err)
		case <-tick.C:
		}
	}
}

func ping(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := pgconn.Connect(ctx, url)
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// stop asks for a fast shutdown and waits for its end.
func (p *process) stop() error {
	if err := p.leash.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return err
	}
	timeout := time.NewTimer(stopTimeout)
	defer timeout.Stop()
	select {
	case <-p.done:
	case <-timeout.C:
		// The group is the server's own; negative means all of it.
		killErr := syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		<-p.done
		return errors.Join(fmt.Errorf("PostgreSQL did not stop within %s and was killed", stopTimeout), killErr)
	}
	if p.err != nil {
		return fmt.Errorf("PostgreSQL ended badly: %w\n%s", p.err, p.out.String())
	}
	return nil
}

// kill ends the server's main process as a crash does. Its other processes end
// when they see that, and hold the output open until then, so the wait is for
// them too. The watchdog is spared: it collects the dead process, whose number
// in postmaster.pid would else look alive to the next start.
func (p *process) kill(postmaster int) error {
	select {
	case <-p.done:
		return errors.New("PostgreSQL had ended before it was killed")
	default:
	}
	if err := syscall.Kill(postmaster, syscall.SIGKILL); err != nil {
		return errors.Join(err, p.stop())
	}
	<-p.done
	if err := p.leash.Close(); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}

// tail keeps the end of what a program printed, for error messages.
type tail struct {
	mu  sync.Mutex
	buf []byte
}

const tailSize = 4096

// Write keeps the last bytes of p and of what came before.
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, p...)
	if extra := len(t.buf) - tailSize; extra > 0 {
		t.buf = append(t.buf[:0], t.buf[extra:]...)
	}
	return len(p), nil
}

// String returns what is kept.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
