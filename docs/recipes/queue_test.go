package recipes_test

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/policies"
	"github.com/seed421102f4/httpretry/strategies"
)

// charge is a job of a queue.
type charge struct{ url, id string }

// chargeAll sends the charges. It returns those that no server has processed, to be
// queued again, and those that a server may have processed, about which somebody
// has to decide.
func chargeAll(client *http.Client, charges []charge) (again, unknown []charge) {
	for _, c := range charges {
		resp, err := client.Post(c.url, "text/plain", strings.NewReader(c.id))
		unprocessed := httpretry.IsUnprocessed(err)
		if err == nil {
			unprocessed = httpretry.ResultOf(resp).Unprocessed
			_ = resp.Body.Close() // its status is enough
		}
		switch {
		case unprocessed:
			again = append(again, c)
		case err != nil || resp.StatusCode >= 300:
			unknown = append(unknown, c)
		}
	}
	return again, unknown
}

// A charge that was never processed is queued again, and no other. None is lost,
// and none is made twice.
func TestQueue(t *testing.T) {
	var mu sync.Mutex
	made := map[string]int{}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := io.ReadAll(r.Body)
		if r.URL.Path == "/busy" || err != nil {
			w.WriteHeader(http.StatusServiceUnavailable) // before it does anything
			return
		}
		mu.Lock()
		made[string(id)]++
		mu.Unlock()
		if r.URL.Path == "/reset" {
			panic(http.ErrAbortHandler)
		}
	}))
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	leaving := faults.HTTP2(t, func(s faults.Stream) { s.GoAway(0, faults.NoError) })
	refused := httptest.NewServer(nil)
	refused.Close()

	ca := x509.NewCertPool()
	ca.AddCert(srv.Certificate())
	base := faults.HTTP2Base(t)
	base.TLSClientConfig = &tls.Config{RootCAs: ca}
	base.Protocols.SetHTTP2(true)
	// The API answers with 503 before it has done anything.
	policy := policies.Statuses(httpretry.Policy{Backoff: strategies.Constant{}}, httpretry.Unprocessed, 503)
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
	require.NoError(t, err)
	client := &http.Client{Transport: transport}

	urls := []string{srv.URL, srv.URL + "/busy", srv.URL + "/reset", refused.URL}
	charges := []charge{{leaving.URL(), "the first charge"}}
	for i := range 20 {
		charges = append(charges, charge{urls[i%len(urls)], fmt.Sprintf("charge %d", i)})
	}
	again, unknown := chargeAll(client, charges)
	assert.Len(t, again, 11)
	assert.Len(t, unknown, 5) // of /reset
	for i := range again {
		again[i].url = srv.URL // the faults are over
	}
	again, more := chargeAll(client, again)
	assert.Empty(t, again)
	assert.Empty(t, more)
	assert.Len(t, made, len(charges))
	for id, n := range made {
		assert.Equal(t, 1, n, id)
	}
}
