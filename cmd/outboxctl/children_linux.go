package main

import "syscall"

// childAttributes also has the kernel end the child when we are killed. The
// signal follows the thread that started it, which is why dev locks its
// goroutine to a thread that lives as long as we do.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
