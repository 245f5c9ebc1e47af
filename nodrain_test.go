//go:build !go1.27

package httpretry_test

const closeDrains = false
