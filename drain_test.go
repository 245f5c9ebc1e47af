//go:build go1.27

package httpretry_test

// closeDrains: Close of a response over HTTP/1 reads on for a while, under a
// mutex, which stops the time of a bubble (Go issue 77370).
const closeDrains = true
