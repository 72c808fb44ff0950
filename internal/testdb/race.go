package testdb

import "os"

// RaceEnv names the environment variable that, set to anything, has tests build
// programs with the race detector. They take twice the processor time then, and their
// packages' own tests run with it in any case.
const RaceEnv = "OUTBOXD_TEST_RACE"

// RaceFlag returns -race if programs are to be built with it.
func RaceFlag() []string {
	if os.Getenv(RaceEnv) == "" {
		return nil
	}
	return []string{"-race"}
}
