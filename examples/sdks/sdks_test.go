// Package sdks has a test for each SDK without a program of its own: how its
// client is made, the policy that suits its service, and the calls that are
// retried. It also counts the requests of all SDKs if their own retries are on.
package sdks

import (
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

// setup is what the client of an SDK is made of.
type setup struct {
	context.Context
	t       testing.TB
	url     string
	client  *http.Client // its transport is a RetryTransport
	retries bool         // those of the SDK
	write   bool         // the call is one that is not idempotent
}

// connect returns a function for sdktest.Suite. The SDK's own retries are off.
func connect[C any](
	newClient func(setup) (C, error),
) func(testing.TB, *sdktest.Server, httpretry.Policy) (C, error) {
	return func(t testing.TB, server *sdktest.Server, p httpretry.Policy) (C, error) {
		transport, err := httpretry.New(httpretry.Config{Policy: p})
		require.NoError(t, err)
		return newClient(setup{Context: t.Context(), t: t, url: server.URL,
			client: &http.Client{Transport: transport}})
	}
}

// calls returns the call of a row. write may be nil.
func calls[C any](newClient func(setup) (C, error), read, write sdktest.Call[C]) func(setup) error {
	return func(s setup) error {
		client, err := newClient(s)
		require.NoError(s.t, err)
		if s.write {
			return write(s, client)
		}
		return read(s, client)
	}
}

// options returns those of a client. off turns off its retries.
func options[T any](s setup, off T, others ...T) []T {
	if s.retries {
		return others
	}
	return append(others, off)
}

// drain reads a body to its end and closes it, after a call without an error.
func drain(body io.ReadCloser, err error) error {
	if err != nil {
		return err
	}
	defer body.Close()
	_, err = io.Copy(io.Discard, body)
	return err
}
