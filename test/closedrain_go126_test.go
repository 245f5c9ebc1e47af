//go:build !go1.27

package test

// closeDrains reports whether Close of an HTTP/1 response reads the rest of
// the body.
const closeDrains = false
