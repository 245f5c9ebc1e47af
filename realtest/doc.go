// Package realtest holds no code but tests: they put httpretry before programs
// that others wrote and many run, haproxy, nginx and toxiproxy, and count at
// the far end what reached it. README.md says how to run them.
package realtest
