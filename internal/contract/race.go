//go:build race

package contract

// RaceEnabled reports whether the test binary was built with -race, which
// allocates and is slow.
const RaceEnabled = true
