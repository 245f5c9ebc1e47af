//go:build go1.27

package test

// closeDrains reports whether Close of an HTTP/1 response reads the rest of
// the body. It does so under a mutex, which stops the time of a synctest bubble
// (Go issue 77370).
const closeDrains = true
