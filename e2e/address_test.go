package e2e_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
)

// Ports that the system gives to nobody who asks for any: Linux's begin at 32768.
const (
	firstPort = 20000
	lastPort  = 32000
)

// givenPorts are those of freeAddress so far.
var givenPorts sync.Map

// freeAddress returns an address that nobody listens on, for a program that others
// have to know before it starts, or that comes back to the same one. It stays free
// meanwhile: connections and listeners on port 0 get others, and no other test gets
// this one.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 1000 {
		address := fmt.Sprintf("127.0.0.1:%d", firstPort+rand.IntN(lastPort-firstPort))
		if _, given := givenPorts.LoadOrStore(address, true); given {
			continue
		}
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}
