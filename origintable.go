package httpretry

import (
	"maps"
	"net/url"
	"strings"
	"sync"

	"github.com/seed421102f4/httpretry/internal/hosttable"
)

// originTable has the origins that a RetryTransport knows whatever its
// policies are. Its zero value is empty.
type originTable struct {
	known hosttable.Table[url.URL] // of the hosts that were looked up last

	mu      sync.Mutex
	waiting map[string]waiting // only with waiting requests
}

// waiting counts the requests to one origin that wait.
type waiting struct {
	requests int
	url      url.URL // the scheme and the host of one of them
}

// note notes that the host of u was looked up.
func (t *originTable) note(origin string, u *url.URL) {
	t.known.Get(origin, func(known *url.URL) { *known = hostOf(u) })
}

// hostOf returns a URL with the scheme and host of u, which may be nil. It does
// not keep the text of u in memory.
func hostOf(u *url.URL) url.URL {
	if u == nil {
		return url.URL{}
	}
	return url.URL{Scheme: strings.Clone(u.Scheme), Host: strings.Clone(u.Host)}
}

// begin notes that a request begins to wait.
func (t *originTable) begin(origin string, u *url.URL) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w, ok := t.waiting[origin]
	if !ok {
		w.url = hostOf(u)
	}
	if t.waiting == nil {
		t.waiting = make(map[string]waiting)
	}
	w.requests++
	t.waiting[origin] = w
}

// end notes that a request does not wait any more.
func (t *originTable) end(origin string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	w := t.waiting[origin]
	if w.requests--; w.requests == 0 {
		delete(t.waiting, origin)
		return
	}
	t.waiting[origin] = w
}

// waitingRequests returns a copy of t.waiting.
func (t *originTable) waitingRequests() map[string]waiting {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.waiting)
}
