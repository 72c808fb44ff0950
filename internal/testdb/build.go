package testdb

import "os"

// raceEnv names the environment variable that, set to anything, has tests build
// programs with the race detector. They take twice the processor time then, and their
// packages' own tests run with it in any case.
const raceEnv = "OUTBOXD_TEST_RACE"

// Race reports whether programs are to be built with the race detector.
func Race() bool { return os.Getenv(raceEnv) != "" }

// BuildFlags are those of go build for a program that a test starts. Linking takes
// less without symbols for a debugger.
func BuildFlags() []string {
	flags := []string{"-buildvcs=false", "-ldflags=-s -w"}
	if Race() {
		flags = append(flags, "-race")
	}
	return flags
}
