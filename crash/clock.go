package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// clockShiftVar says by how many seconds the clock of a worker is off.
const clockShiftVar = "OUTBOXD_CLOCK_SHIFT"

// clockShifts are the faults that set the clocks of all workers off. They keep
// their pace, as real ones do: what measures durations is not touched.
var clockShifts = map[Fault]string{Ahead: "600", Behind: "-600"}

// shiftsClocks reports whether one of the cells sets clocks off.
func shiftsClocks(cells []Cell) bool {
	return slices.ContainsFunc(cells, func(c Cell) bool { return clockShifts[c.Fault] != "" })
}

// buildShifted builds the worker with a standard library whose clock can be set
// off. Nothing else can: Go reads the clock without the C library.
func buildShifted(ctx context.Context, path string, patches ...patch) error {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	clock := patch{filepath.Join(strings.TrimSpace(string(out)), "src", "time", "time.go"), []edit{
		{"import (\n", "import (\n\t\"syscall\"\n"},
		{"\tsec, nsec, mono := runtimeNow()\n", "\tsec, nsec, mono := runtimeNow()\n\tsec += clockShift\n"},
		{"func unixTime(", `var clockShift = func() int64 {
	text, _ := syscall.Getenv("` + clockShiftVar + `")
	sign, seconds := int64(1), int64(0)
	for _, digit := range []byte(text) {
		if digit == '-' {
			sign = -1
			continue
		}
		seconds = 10*seconds + int64(digit-'0')
	}
	return sign * seconds
}()

func unixTime(`},
	}}
	return buildPatched(ctx, path, append(patches, clock)...)
}
