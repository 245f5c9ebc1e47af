package httpretry

import (
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry/internal/hosttable"
)

// originTable has the origins that a RetryTransport knows whatever its
// policies are. Its zero value is empty.
type originTable struct {
	known hosttable.Table[knownOrigin] // those that were looked up, or failed, last

	mu      sync.Mutex
	waiting map[string]*waiting // only with waiting requests
}

// place has the scheme and the host of a URL.
type place struct{ scheme, host string }

// placeOf does not keep the text of u in memory. u may be nil.
func placeOf(u *url.URL) place {
	if u == nil {
		return place{}
	}
	return place{strings.Clone(u.Scheme), strings.Clone(u.Host)}
}

func (p place) url() *url.URL { return &url.URL{Scheme: p.scheme, Host: p.host} }

// waiting counts the requests to one origin that wait.
type waiting struct {
	requests int
	place    place // of one of them
}

// knownOrigin is the state of an origin that does not depend on policies. A
// success does not change it, so that a success costs nothing.
type knownOrigin struct {
	place place

	mu                 sync.Mutex
	last               failure // the last one, or zero
	failedWithoutRetry int
}

// failure is an attempt that failed.
type failure struct {
	at     time.Time
	text   string // of the error, or ""
	status int    // of the response, if there is no text
}

// get returns the state of origin, which is that of u.
func (t *originTable) get(origin string, u *url.URL) *knownOrigin {
	return t.known.Get(origin, func(o *knownOrigin) { o.place = placeOf(u) })
}

// fail records a failure.
func (o *knownOrigin) fail(f failure) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = f
}

// endWithoutRetry records that a request has failed, and was not retried.
func (o *knownOrigin) endWithoutRetry() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.failedWithoutRetry++
}

// failures returns the last failure, and how many requests failed without a
// retry.
func (o *knownOrigin) failures() (last failure, withoutRetry int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last, o.failedWithoutRetry
}

// String returns the text of an Event's Status, or "" for no failure.
func (f failure) String() string {
	if f.text == "" && !f.at.IsZero() {
		return statusText(f.status)
	}
	return f.text
}

// begin notes that a request begins to wait.
func (t *originTable) begin(origin string, u *url.URL) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.waiting[origin]
	if w == nil {
		w = t.add(origin, u)
	}
	w.requests++
}

// add is apart from begin, so that most waiting requests need less stack.
func (t *originTable) add(origin string, u *url.URL) *waiting {
	if t.waiting == nil {
		t.waiting = make(map[string]*waiting)
	}
	w := &waiting{place: placeOf(u)}
	t.waiting[origin] = w
	return w
}

// end notes that a request does not wait any more.
func (t *originTable) end(origin string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.waiting[origin]
	if w.requests--; w.requests == 0 {
		delete(t.waiting, origin)
	}
}

// waitingRequests returns a copy of t.waiting.
func (t *originTable) waitingRequests() map[string]waiting {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make(map[string]waiting, len(t.waiting))
	for origin, w := range t.waiting {
		all[origin] = *w
	}
	return all
}
