// Package peers makes clients with httpretry and with its alternatives, so that
// the programs of this module run all of them in the same way.
package peers

import (
	"net/http"
	"runtime"
	"runtime/debug"
	"time"
)

// Options are the settings that the programs vary. A zero field means the
// library's own default.
type Options struct {
	// Base sends the attempts. Nil means http.DefaultTransport.
	Base http.RoundTripper

	// Attempts is the maximum number of attempts, the first included.
	Attempts int

	// Wait is the wait before each retry, unless the server asks for another.
	Wait time.Duration

	// NoBudget sets httpretry's budget to Unlimited. The other libraries have
	// no retry budget by default.
	NoBudget bool
}

func (o Options) base() http.RoundTripper {
	if o.Base == nil {
		return http.DefaultTransport
	}
	return o.Base
}

// Client sends a request as [http.Client.Do] does.
type Client interface {
	Do(*http.Request) (*http.Response, error)
}

// Peer is a way to send requests.
type Peer struct {
	Name   string // for tables
	Module string // "": there is none

	// New returns a client as a user of the library has it: an http.Client if
	// the library is an http.RoundTripper, else the library's own client.
	New func(Options) Client

	// RoundTripper returns the transport that New puts below the http.Client.
	// It is nil if the library is not an http.RoundTripper.
	RoundTripper func(Options) http.RoundTripper
}

const ours = "github.com/seed421102f4/httpretry"

// All returns all peers: httpretry first, then those without a library, then
// the libraries.
func All() []Peer {
	return []Peer{
		below("httpretry", ours, httpretryTransport),
		below("http.Client", "", func(o Options) http.RoundTripper { return o.base() }),
		below("naive loop", "", func(o Options) http.RoundTripper { return naive{o} }),
		below("go-retryablehttp", "github.com/hashicorp/go-retryablehttp", retryablehttpTransport),
		below("rehttp", "github.com/PuerkitoBio/rehttp", rehttpTransport),
		below("failsafehttp", "github.com/failsafe-go/failsafe-go", failsafeTransport),
		{Name: "heimdall", Module: "github.com/gojek/heimdall/v7", New: newHeimdall},
		{Name: "resty v2", Module: "github.com/go-resty/resty/v2", New: newRestyV2},
		{Name: "resty v3", Module: "resty.dev/v3", New: newRestyV3},
	}
}

// below returns the peer that is an http.RoundTripper below an http.Client.
func below(name, module string, transport func(Options) http.RoundTripper) Peer {
	return Peer{
		Name:         name,
		Module:       module,
		New:          func(o Options) Client { return &http.Client{Transport: transport(o)} },
		RoundTripper: transport,
	}
}

// Version returns the version of the peer's module that this program was built
// with, or "unknown" in a test, whose binary does not have the versions.
func (p Peer) Version() string {
	switch p.Module {
	case "":
		return runtime.Version()
	case ours:
		return "this tree"
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	for _, m := range info.Deps {
		if m.Path == p.Module {
			return m.Version
		}
	}
	return "unknown"
}
