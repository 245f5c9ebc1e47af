package recipes_test

import (
	"context"
	"encoding/json"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/policies"
	"github.com/seed421102f4/httpretry/strategies"
)

// polls is the budget of requests that wait for something new. They do not use
// up the retries of others.
var polls = &httpretry.HostBudget{Burst: 100}

// justCreated returns a context for requests for something that was just
// created. A replica that does not know it yet answers 404.
func justCreated(ctx context.Context) context.Context {
	return httpretry.WithPolicyFunc(ctx, func(p httpretry.Policy) httpretry.Policy {
		p = policies.Statuses(p, httpretry.Transient, http.StatusNotFound)
		p.Backoff = strategies.EqualJitter{Base: 100 * time.Millisecond, Max: time.Second}
		p.MaxAttempts, p.MaxElapsed = 20, 10*time.Second
		p.Budget = polls
		return p
	})
}

func TestJustCreated(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		polls = &httpretry.HostBudget{Burst: polls.Burst} // another run may have used it up
		replica := play(404, 404, 404, 404, 404, 404, 404, 200)
		client := newClient(t, httpretry.Config{Base: replica})
		get := request(t, "GET", "")
		assert.Equal(t, 200, status(t, client, get.WithContext(justCreated(t.Context()))))

		start, never := time.Now(), play(404)
		client = newClient(t, httpretry.Config{Base: never})
		assert.Equal(t, 404, status(t, client, get)) // in another context
		assert.Equal(t, 1, never.count())
		assert.Equal(t, 404, status(t, client, get.WithContext(justCreated(t.Context()))))
		assert.InDelta(t, 10, time.Since(start).Seconds(), 1)
	})
}

// behindProxies is the Classify of requests through proxies that do not retry.
func behindProxies(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
	if err == nil && neverForwarded(resp) {
		return httpretry.Unprocessed
	}
	return httpretry.Classify(req, resp, err)
}

// neverForwarded reports whether the proxy next to the server says that it has
// not sent the request.
func neverForwarded(resp *http.Response) bool {
	switch {
	case resp.StatusCode < 500:
		return false // such as a response that a cache had, instead of an error
	case resp.StatusCode == 521 || resp.StatusCode == 523:
		return resp.Header.Get("Server") == "cloudflare"
	}
	// An error may be named in a quoted text, too.
	all := quoted.ReplaceAllString(strings.Join(resp.Header["Proxy-Status"], ","), "")
	nearest, _, _ := strings.Cut(all, ",") // to the server
	failure := ""
	for parameter := range strings.SplitSeq(nearest, ";") {
		switch name, value, _ := strings.Cut(strings.TrimSpace(parameter), "="); name {
		case "error":
			failure = value
		case "received-status":
			return false
		}
	}
	return slices.Contains(beforeForwarding, failure)
}

var quoted = regexp.MustCompile(`"(\\.|[^"\\])*"`)

// beforeForwarding has the errors of RFC 9209 section 2.3 that precede a
// connection and that a retry may not get.
var beforeForwarding = []string{
	"dns_timeout", "dns_error", "destination_unavailable", "destination_ip_unroutable",
	"connection_refused", "connection_timeout", "connection_limit_reached",
}

// TestNeverForwarded checks which responses make a POST be sent again.
func TestNeverForwarded(t *testing.T) {
	for _, tt := range []struct {
		status int
		header []string // of Proxy-Status
		server string
		want   bool
	}{
		{502, []string{"edge; error=connection_refused"}, "", true},
		{504, []string{`"a;b" ;details="x, y"; error=connection_timeout ;next-hop=c`}, "", true},
		{503, []string{"origin-shield; error=destination_unavailable", "edge; received-status=503"}, "", true},
		{504, []string{"edge; error=connection_read_timeout"}, "", false},
		{502, []string{"edge; error=tls_alert_received"}, "", false}, // or after the handshake
		{502, []string{"shield; received-status=502, edge; error=connection_refused"}, "", false},
		{502, []string{`edge; error=http_protocol_error; details="; error=connection_refused; \" "`}, "", false},
		{502, []string{"edge; error=connection_refused; received-status=502"}, "", false},
		{403, []string{"edge; error=destination_unavailable"}, "", false},
		{502, nil, "", false},
		{521, nil, "cloudflare", true},
		{523, nil, "cloudflare", true},
		{521, nil, "nginx", false},
		{522, nil, "cloudflare", false}, // a timeout of the connection or of the response
	} {
		synctest.Test(t, func(t *testing.T) {
			header := http.Header{"Proxy-Status": tt.header, "Server": {tt.server}}
			base := contract.Play(contract.Step{Status: tt.status, Header: header}, contract.Step{})
			client := newClient(t, httpretry.Config{
				Base: base, Policy: httpretry.Policy{Classify: behindProxies}})
			assert.Equal(t, tt.want, status(t, client, request(t, "POST", "data")) == 200,
				"%d %q", tt.status, tt.header)
		})
	}
}

// graphQL is the policy for a GraphQL server, whose 200 may have errors.
func graphQL() httpretry.Policy {
	return httpretry.Policy{
		ReadAhead: 64 << 10, // a longer response is a success
		Classify: func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
			var answer struct {
				Errors []struct{ Extensions struct{ Code string } }
			}
			if json.Unmarshal(httpretry.Peek(resp), &answer) == nil {
				for _, e := range answer.Errors {
					switch e.Extensions.Code {
					case "THROTTLED", "INTERNAL_SERVER_ERROR":
						return httpretry.Transient
					}
				}
			}
			return httpretry.Classify(req, resp, err)
		},
	}
}

// bulkResult is the response of Elasticsearch to a bulk. It is short with
// ?filter_path=errors,items.*.status.
type bulkResult struct {
	Errors bool
	Items  []map[string]struct{ Status int } // each has one key, its action
}

// rejected returns the indexes of the items that have to be sent again.
func (b bulkResult) rejected() (all []int) {
	for i, item := range b.Items {
		for _, action := range item {
			if action.Status == http.StatusTooManyRequests {
				all = append(all, i)
			}
		}
	}
	return all
}

// bulks is a policy that retries a bulk if each of its items was rejected.
func bulks() httpretry.Policy {
	return httpretry.Policy{
		ReadAhead: 1 << 20,
		Classify: func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
			var result bulkResult
			if json.Unmarshal(httpretry.Peek(resp), &result) == nil &&
				result.Errors && len(result.rejected()) == len(result.Items) {
				return httpretry.Unprocessed
			}
			return httpretry.Classify(req, resp, err)
		},
	}
}

// TestErrorsOf200 sends a POST to servers whose 200 has an error in its body.
func TestErrorsOf200(t *testing.T) {
	const (
		throttled = `{"errors": [{"message": "m", "extensions": {"code": "THROTTLED"}}], "data": null}`
		rejected  = `{"errors": true, "items": [{"index": {"status": 429}}, {"create": {"status": 429}}]}`
		some      = `{"errors": true, "items": [{"index": {"status": 201}}, {"create": {"status": 429}}]}`
	)
	for name, tt := range map[string]struct {
		policy httpretry.Policy
		ctx    func(context.Context) context.Context
		body   string
		want   int // requests
	}{
		"GraphQL, query":         {graphQL(), httpretry.WithIdempotent, throttled, 3},
		"GraphQL, mutation":      {graphQL(), nil, throttled, 1},
		"GraphQL, another error": {graphQL(), httpretry.WithIdempotent, `{"errors": [{"message": "m"}]}`, 1},
		"GraphQL, long":          {graphQL(), httpretry.WithIdempotent, strings.Repeat(" ", 64<<10) + throttled, 1},
		"bulk, all rejected":     {bulks(), nil, rejected, 3},
		"bulk, some rejected":    {bulks(), nil, some, 1},
		"bulk, success":          {bulks(), nil, `{"errors": false, "items": []}`, 1},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			server := contract.Play(contract.Step{Body: tt.body})
			client := newClient(t, httpretry.Config{Base: server, Policy: tt.policy})
			req := request(t, "POST", "data")
			if tt.ctx != nil {
				req = req.WithContext(tt.ctx(t.Context()))
			}
			resp, err := client.Do(req)
			require.NoError(t, err)
			body := contract.ReadBody(t, resp) // the caller gets the last response
			assert.Equal(t, tt.body, body)
			assert.Len(t, server.Attempts(), tt.want)
			if tt.body == some {
				var result bulkResult
				require.NoError(t, json.Unmarshal([]byte(body), &result))
				assert.Equal(t, []int{1}, result.rejected())
			}
		})
	}
}
