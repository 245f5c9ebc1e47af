// Package origintable provides Table, which remembers the origins that a
// transport has used, their last failures, and how many requests wait for each.
//
// It does not know policies, and it does not decide whether an attempt has
// failed.
package origintable

import (
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry/internal/hosttable"
)

// Table has the origins that a transport knows whatever its policies are. Its
// zero value is empty. It is safe for concurrent use.
type Table struct {
	known hosttable.Table[Origin] // those that were looked up, or failed, last

	mu      sync.Mutex
	waiting map[string]*waiting // only with waiting requests
}

// Origin is the state of an origin. A success does not change it, so that a
// success costs nothing.
type Origin struct {
	address address

	mu                 sync.Mutex
	last               Failure
	failedWithoutRetry int
}

// Failure is an attempt that failed, or zero.
type Failure struct {
	At     time.Time
	Text   string // of the error, or ""
	Status int    // of the response, if there is no text
}

// waiting counts the requests to one origin that wait.
type waiting struct {
	requests int
	address  address // of one of them
}

// address has the scheme and the host of a URL.
type address struct{ scheme, host string }

// addressOf does not keep the text of u in memory. u may be nil.
func addressOf(u *url.URL) address {
	if u == nil {
		return address{}
	}
	return address{strings.Clone(u.Scheme), strings.Clone(u.Host)}
}

// Get returns the state of origin, which is that of u.
func (t *Table) Get(origin string, u *url.URL) *Origin {
	return t.known.Get(origin, func(o *Origin) { o.address = addressOf(u) })
}

// Fail records a failure.
func (o *Origin) Fail(f Failure) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = f
}

// FailWithoutRetry records that a request has failed, and was not retried.
func (o *Origin) FailWithoutRetry() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failedWithoutRetry++
}

// BeginWait records that a request to origin begins to wait. origin is that of
// u.
func (t *Table) BeginWait(origin string, u *url.URL) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.waiting[origin]
	if w == nil {
		if t.waiting == nil {
			t.waiting = make(map[string]*waiting)
		}
		w = &waiting{address: addressOf(u)}
		t.waiting[origin] = w
	}
	w.requests++
}

// EndWait records that a request to origin does not wait any more.
func (t *Table) EndWait(origin string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.waiting[origin]
	if w.requests--; w.requests == 0 {
		delete(t.waiting, origin)
	}
}

// State is a copy of the state of an origin.
type State struct {
	Waiting            int     // requests that wait
	LastFailure        Failure // zero if there was none, or if it is forgotten
	FailedWithoutRetry int     // requests

	address address
}

// URL returns a URL with the scheme and the host of one that has the origin.
func (s State) URL() *url.URL { return &url.URL{Scheme: s.address.scheme, Host: s.address.host} }

// All returns the state of each origin that is remembered or has waiting
// requests.
func (t *Table) All() map[string]State {
	all := make(map[string]State)
	for origin, o := range t.known.All() {
		all[origin] = o.state()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for origin, w := range t.waiting {
		s := all[origin]
		s.Waiting, s.address = w.requests, w.address
		all[origin] = s
	}
	return all
}

func (o *Origin) state() State {
	o.mu.Lock()
	defer o.mu.Unlock()
	return State{
		LastFailure: o.last, FailedWithoutRetry: o.failedWithoutRetry, address: o.address}
}
