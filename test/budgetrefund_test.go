package test

import (
	"context"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/retrytest"
)

// A retry that the budget has charged for is refunded if a panic of the
// observer, or of a response's body, prevents it. One that was sent is not.
func TestPanicRefundsUnsentRetry(t *testing.T) {
	const host = "http://a.test"
	for name, tt := range map[string]struct {
		panicsIn string
		charges  int
	}{
		"observer":       {"observer", 0},
		"response":       {"response", 0},
		"second attempt": {"second attempt", 1},
	} {
		t.Run(name, func(t *testing.T) {
			spring := func(place string) {
				if place == tt.panicsIn {
					panic("boom")
				}
			}
			base := retrytest.BaseFunc(func(req *http.Request) (*http.Response, error) {
				if httpretry.Attempt(req.Context()) == 2 {
					spring("second attempt")
				}
				body := retrytest.ReaderFunc(func([]byte) (int, error) { spring("response"); return 0, http.ErrAbortHandler })
				return &http.Response{StatusCode: 503, Body: &retrytest.Body{ReadCloser: readCloser{body}}}, nil
			})
			budget := new(httpretry.HostBudget)
			policy := retrytest.RetryEvery(0)
			policy.MaxAttempts, policy.Budget = 2, budget
			transport := retrytest.Unchecked(t, httpretry.Config{
				Base: base, Policy: policy,
				Observe: func(context.Context, httpretry.Event) { spring("observer") },
			})
			full := retrytest.Balance(budget, host)
			assert.PanicsWithValue(t, "boom", func() {
				_, _ = transport.RoundTrip(retrytest.Request(t, "GET", "http://a.test/", ""))
			})
			assert.Equal(t, full-tt.charges, retrytest.Balance(budget, host))
		})
	}
}

type readCloser struct{ retrytest.ReaderFunc }

func (readCloser) Close() error { return nil }
