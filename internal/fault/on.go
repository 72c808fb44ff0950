//go:build faults

package fault

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"
)

const (
	// PointEnv names the point at which the process is to stop.
	PointEnv = "OUTBOXD_FAULT"
	// AddrEnv is where the harness listens.
	AddrEnv = "OUTBOXD_FAULT_ADDR"
)

// Panic is what the harness says to make the point panic. Anything else, the
// end of the connection too, lets the process go on.
const Panic = "panic"

// hit is set by the first process-wide hit: later passes go through.
var hit atomic.Bool

// Point stops the process if the environment names it, once. The subject is
// the id of the email.
func Point(name string, subject [16]byte) {
	if os.Getenv(PointEnv) != name || hit.Swap(true) {
		return
	}
	conn, err := net.DialTimeout("tcp", os.Getenv(AddrEnv), 5*time.Second)
	if err != nil {
		panic(fmt.Sprintf("fault point %s: no harness: %v", name, err))
	}
	defer func() { _ = conn.Close() }()
	_, _ = fmt.Fprintf(conn, "%s %s\n", name, hex.EncodeToString(subject[:]))
	word, _ := bufio.NewReader(conn).ReadString('\n')
	if strings.TrimSpace(word) == Panic {
		panic("fault point " + name)
	}
}
