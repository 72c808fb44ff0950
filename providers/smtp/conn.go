package smtp

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// blockTimeout is how long one write of content may take: RFC 5321, 4.5.3.2.5.
const blockTimeout = 3 * time.Minute

// wire is the TCP connection below TLS. It knows what the SMTP client does not
// tell: whether a write of content failed, which is whether the final dot
// reached the kernel.
type wire struct {
	net.Conn

	content     atomic.Bool // content is being written and no reply read yet
	writeFailed atomic.Bool // a write of content failed
	deaf        atomic.Bool
	closing     sync.Once
}

// Write implements [net.Conn].
func (w *wire) Write(p []byte) (int, error) {
	if !w.content.Load() {
		return w.Conn.Write(p)
	}
	err := w.SetWriteDeadline(time.Now().Add(blockTimeout))
	n := 0
	if err == nil {
		n, err = w.Conn.Write(p)
	}
	if err != nil {
		w.writeFailed.Store(true)
	}
	return n, err
}

// Read implements [net.Conn].
func (w *wire) Read(p []byte) (int, error) {
	// The client reads when the dot is out. What TLS writes from now on, such
	// as a key update, says nothing about the content.
	w.content.Store(false)
	if w.deaf.Load() {
		return 0, io.EOF
	}
	return w.Conn.Read(p)
}

// abort resets the connection. What is still in the kernel's buffer is dropped
// instead of sent, and no QUIT completes a message that was broken off: that
// is how truncated mails get delivered (PHPMailer/PHPMailer#2994).
func (w *wire) abort() {
	w.closing.Do(func() {
		if tcp, ok := w.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = w.Conn.Close()
	})
}

// bind aborts the connection when ctx ends, until the returned function is
// called. That function reports false when the connection was aborted.
func (w *wire) bind(ctx context.Context) (release func() bool) {
	return context.AfterFunc(ctx, w.abort)
}
