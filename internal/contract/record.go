package contract

import (
	"context"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry"
)

// Record collects events. The zero Record is empty.
type Record struct {
	Events []httpretry.Event // read it when no request is running

	mu sync.Mutex
}

// Observe is a Config.Observe.
func (r *Record) Observe(_ context.Context, e httpretry.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Events = append(r.Events, e)
}

// Reason returns the Reason of the last event.
func (r *Record) Reason() httpretry.Reason {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.Events) == 0 {
		return httpretry.ReasonNone
	}
	return r.Events[len(r.Events)-1].Reason
}

// HasResult compares the attempts and the Reason of httpretry.ResultOf(resp).
func HasResult(t testing.TB, resp *http.Response, attempts int, reason httpretry.Reason) {
	t.Helper()
	got := httpretry.ResultOf(resp)
	assert.Equal(t, attempts, got.Attempts, "attempts")
	assert.Equal(t, reason.String(), got.Reason.String(), "reason")
}
