// Package wrap puts httpretry above the transports that net/http's own tests
// use. It is copied into the copy of GOROOT that those tests run from.
package wrap

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"reflect"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// Modes are the values that New accepts, in the order in which they run.
func Modes() []string { return []string{"nothing", "zero", "timeout", "watched"} }

// Wrapper returns one wrapper per transport, so that the state that a
// RetryTransport has of a host, such as its budget, is kept from request to
// request as in a program.
type Wrapper struct {
	wrap     func(http.RoundTripper) (http.RoundTripper, error)
	wrappers sync.Map // by transport
	count    string   // a file with one byte per request
}

// New returns a Wrapper that appends one byte per request to the file count,
// which shows that requests go through it. Its mode is one of:
//
//   - nothing: a RoundTripper that only calls its base, as a control.
//   - zero: a RetryTransport with a zero Policy, but for the length of its
//     waits.
//   - timeout: each attempt is a copy of the request, with a timeout that never
//     expires, and bodies are resumed whatever their validators.
//   - watched: no request is idempotent, so each is traced.
func New(mode, count string) (*Wrapper, error) {
	policy := quick()
	switch mode {
	case "nothing":
		return &Wrapper{count: count, wrap: func(base http.RoundTripper) (http.RoundTripper, error) {
			return nothing{base}, nil
		}}, nil
	case "zero":
	case "timeout":
		policy.AttemptTimeout = time.Hour
		policy.Resume, policy.ResumeIdle = true, time.Hour
		policy.ResumeSame = func(*http.Response, *http.Response) bool { return true }
	case "watched":
		policy.Idempotent = func(*http.Request) bool { return false }
	default:
		return nil, fmt.Errorf("mode %q: want one of %q", mode, Modes())
	}
	return &Wrapper{count: count, wrap: func(base http.RoundTripper) (http.RoundTripper, error) {
		return httpretry.New(httpretry.Config{Base: base, Policy: policy})
	}}, nil
}

// quick returns a zero Policy with short waits. The default waits are half a
// second and more, and several tests stop waiting for a response sooner.
func quick() httpretry.Policy {
	return httpretry.Policy{Backoff: strategies.Constant{Wait: time.Millisecond}}
}

// Transport returns the wrapper of base, for one request.
func (w *Wrapper) Transport(base http.RoundTripper) http.RoundTripper {
	if err := w.note(); err != nil {
		panic(err)
	}
	// A transport that is not a valid map key gets a wrapper for each request.
	if !reflect.ValueOf(base).Comparable() {
		return w.make(base)
	}
	if known, ok := w.wrappers.Load(base); ok {
		return known.(http.RoundTripper)
	}
	made, _ := w.wrappers.LoadOrStore(base, w.make(base))
	return made.(http.RoundTripper)
}

// note counts a request.
func (w *Wrapper) note() error {
	file, err := os.OpenFile(w.count, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = file.Write([]byte{'.'})
	return errors.Join(err, file.Close())
}

func (w *Wrapper) make(base http.RoundTripper) http.RoundTripper {
	rt, err := w.wrap(base)
	if err != nil {
		panic(err)
	}
	return rt
}

// nothing is the least that a wrapper does.
type nothing struct{ http.RoundTripper }

// CloseIdleConnections is called by http.Client.CloseIdleConnections.
func (n nothing) CloseIdleConnections() {
	if base, ok := n.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}
