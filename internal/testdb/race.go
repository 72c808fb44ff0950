package testdb

import "runtime/debug"

// RaceFlag returns -race if this process was built with it. A test that builds
// programs passes it on: the detector watches them too, and what was compiled
// for the tests is not compiled once more without it.
func RaceFlag() []string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return nil
	}
	for _, setting := range info.Settings {
		if setting.Key == "-race" && setting.Value == "true" {
			return []string{"-race"}
		}
	}
	return nil
}
