package test

import (
	"cmp"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

// Hazard H3: the policy and the budget of a request are those of its URL's
// host, however that is spelled. Its Host header does not count.
func TestHostsOnTheWire(t *testing.T) {
	srv := faults.HTTP1(t,
		func(c *faults.Conn, _ *http.Request) bool { c.Respond(503, ""); return true })
	book := &contract.Ledger{}
	policy := contract.RetryEvery(0)
	policy.MaxAttempts, policy.Budget = 2, book
	transport := contract.New(t, httpretry.Config{
		Base:   connectTo(t, srv.Addr),
		Policy: httpretry.Policy{MaxAttempts: 1},
		Policies: map[string]httpretry.Policy{"example.com:80": policy, "[::1]:80": policy,
			"127.0.0.1": policy, "faß.example": policy,
			"evil.com": policy, "[fe80::1%eth0]": policy},
	})
	for raw, want := range map[string]string{
		"http://example.com": "example.com", "http://Example.COM.:0080": "example.com",
		"http://[0:0:0:0:0:0:0:1]:080": "[::1]", "http://127.0.0.1:8080": "127.0.0.1:8080",
		"http://[FE80::1%25eth0]": "[fe80::1%eth0]", "http://FAß.example.:80": "faß.example",
		"http://good.com@evil.com": "evil.com", "http://example.com:80@EVIL.com": "evil.com",
		"http://example.com:81": "", "http://sub.example.com": "", "http://evil.com@good.com": "",
		// Names that are mapped to another one are other names.
		"http://xn--fa-hia.example": "",
		"http://ｅｘａｍｐｌｅ.com":        "", "http://example。com": "", "http://１２７.0.0.1": "",
	} {
		for _, host := range []string{"", "example.com", "other.test"} {
			book.Entries = nil
			before := srv.Requests.Load()
			req := contract.Request(t, "GET", raw, "")
			req.Host = cmp.Or(host, req.Host)
			contract.Send(t, transport, req)
			sends, entries := 1, []string(nil)
			if want != "" {
				sends, entries = 2, []string{"failure http://" + want,
					"withdraw http://" + want, "charged failure http://" + want}
			}
			assert.EqualValues(t, sends, srv.Requests.Load()-before, "%s, Host %s", raw, host)
			assert.Equal(t, entries, book.Entries, "%s, Host %s", raw, host)
		}
	}
}

// Hazard H4, H7: requests to ever new hosts, as an attacker can provoke with
// redirects, do not fill the memory.
func TestManyHosts(t *testing.T) {
	hosts := 50_000
	if contract.RaceEnabled {
		hosts = 2_000 // eviction takes a hundred times as long
	}
	shared := &httpretry.HostBudget{}
	for name, cfg := range map[string]httpretry.Config{
		"budget of its own": {},
		"shared budget":     {Policy: httpretry.Policy{Budget: shared}},
		"policies": {Policies: map[string]httpretry.Policy{
			"*.test": {MaxAttempts: 2}, "*.7.test": {MaxAttempts: 2, Budget: shared}}},
	} {
		t.Run(name, func(t *testing.T) {
			var sends atomic.Int64
			cfg.Base = contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				sends.Add(1)
				if req.URL.Path == "/flaky" && httpretry.Attempt(req.Context()) == 1 {
					return &http.Response{StatusCode: 503, Body: http.NoBody}, nil
				}
				return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
			})
			cfg.Policy.Backoff = strategies.Constant{}
			for pattern, p := range cfg.Policies {
				p.Backoff = strategies.Constant{}
				cfg.Policies[pattern] = p
			}
			// the checks would keep the responses in memory
			transport := contract.Unchecked(t, cfg)
			before := contract.HeapInUse()
			visitHosts(t, transport, hosts)
			grown := contract.HeapInUse() - before
			t.Logf("%d hosts: %d KiB", hosts, grown>>10)
			assert.EqualValues(t, 3*hosts, sends.Load(), "each host has its own first retry")
			assert.Less(t, grown, int64(8<<20))
			runtime.KeepAlive(transport)
		})
	}
}

// visitHosts sends two requests to each host: one that fails at first, and one
// that does not.
func visitHosts(t *testing.T, transport http.RoundTripper, hosts int) {
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			for i := worker; i < hosts; i += 4 {
				for _, path := range []string{"/flaky", "/"} {
					u := &url.URL{
						Scheme: "http", Host: fmt.Sprintf("h%d.%d.test", i, i%10), Path: path}
					resp, err := transport.RoundTrip(
						(&http.Request{Method: "GET", URL: u, Header: http.Header{}}).
							WithContext(t.Context()))
					if err != nil || resp.StatusCode != 200 {
						t.Errorf("%v: %v, %v", u, resp, err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

// A redirect may lead to a host name of any length, and a proxy answers for it.
// The bytes kept of hosts are bounded, too.
func TestHugeHostNames(t *testing.T) {
	const size, hosts = 128 << 10, 128
	for name, answer := range map[string]contract.Step{
		"success":   s200,
		"failure":   s503,
		"cool-down": contract.Status(429, "Retry-After", "3600"),
	} {
		t.Run(name, func(t *testing.T) {
			policy := httpretry.Policy{Backoff: strategies.Constant{}}
			base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
				return contract.Play(answer).RoundTrip(req)
			})
			transport := contract.Unchecked(t, httpretry.Config{Base: base, Policy: policy})
			before := contract.HeapInUse()
			for i := range hosts {
				scheme := []string{"http", "https"}[i%2]
				host := fmt.Sprintf("%d.%s", i, strings.Repeat("a", size))
				contract.Send(t, transport, contract.Request(t, "GET", scheme+"://"+host+"/", ""))
			}
			assert.Less(t, contract.HeapInUse()-before, int64(hosts*size/8))
			runtime.KeepAlive(transport)
		})
	}
}
