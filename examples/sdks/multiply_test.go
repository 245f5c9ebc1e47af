package sdks

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slack-go/slack"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/policies"
)

// row is a row of the README's table: an SDK and a call that always fails.
type row struct {
	sdk     string // with the version that go.mod requires
	module  string
	policy  httpretry.Policy
	answer  http.HandlerFunc // nil means down
	counted string           // only requests whose URI contains it
	call    func(setup) error
	write   bool // see setup
}

// multiplied returns the table in the order of the README.
func multiplied() []row {
	search := policies.Reads(httpretry.Policy{}, "/_search")
	return []row{
		{sdk: "go-github v89", module: "github.com/google/go-github/v89", call: callGithub,
			policy: policies.GitHub(), answer: rateLimited},
		{sdk: "stripe-go v85", module: "github.com/stripe/stripe-go/v85", call: callStripe},
		{sdk: "openai-go v3", module: "github.com/openai/openai-go/v3", call: callOpenAI},
		{sdk: "x/oauth2 v0.37", module: "golang.org/x/oauth2", call: callOAuth2, policy: tokenPolicy()},
		{sdk: "resty v2.17", module: "github.com/go-resty/resty/v2",
			call: calls(newResty, restyGet, nil)},
		{sdk: "go-elasticsearch v9", module: "github.com/elastic/go-elasticsearch/v9",
			call: calls(newElasticsearch, esSearch, esBulk), policy: search},
		{sdk: "minio-go v7", module: "github.com/minio/minio-go/v7", call: calls(newMinio, statObject, nil)},
		{sdk: "aws-sdk-go-v2", module: "github.com/aws/aws-sdk-go-v2/service/s3", call: callAWS},
		{sdk: "azblob v1.8", module: "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob",
			call: calls(newAzblob, downloadBlob, appendBlock)},
		{sdk: "storage/v1", module: "google.golang.org/api", call: callGoogleStorage,
			counted: "upload_id", policy: tokenPolicy(), answer: chunksFail},
		{sdk: "client-go v0.37", module: "k8s.io/client-go", call: callKubernetes, answer: later},
		{sdk: "gitlab v2.64", module: "gitlab.com/gitlab-org/api/client-go/v2",
			call: calls(newGitlab, getProject, createGitlabIssue)},
		{sdk: "vault/api v1.23", module: "github.com/hashicorp/vault/api",
			call: calls(newVault, getSecret, putSecret)},
		{sdk: "opensearch-go v4", module: "github.com/opensearch-project/opensearch-go/v4",
			call: callOpensearch, policy: search, counted: "/_"},
		{sdk: "anthropic-sdk-go v1.84", module: "github.com/anthropics/anthropic-sdk-go",
			call: callAnthropic, policy: policies.Anthropic()},
		{sdk: "cloudflare-go v6", module: "github.com/cloudflare/cloudflare-go/v6", call: callCloudflare},
		{sdk: "hcloud-go v2.52", module: "github.com/hetznercloud/hcloud-go/v2",
			call: callHcloud, answer: status(http.StatusBadGateway, "")},
		{sdk: "meilisearch-go v0.36", module: "github.com/meilisearch/meilisearch-go",
			call: callMeilisearch, policy: policies.Reads(httpretry.Policy{}, "/indexes/*/search")},
		{sdk: "slack-go v0.35", module: "github.com/slack-go/slack", call: callSlack,
			policy: policies.Slack()},
		{sdk: "LINE bot SDK v8", module: "github.com/line/line-bot-sdk-go/v8", call: callLINE},
		{sdk: "twilio-go v1.31", module: "github.com/twilio/twilio-go", call: callTwilio},
		{sdk: "twilio-go v1.31, voice/v3", module: "github.com/twilio/twilio-go", call: callTwilioV1},
		{sdk: "sentry-go v0.50", module: "github.com/getsentry/sentry-go", call: callSentry},
	}
}

// status returns a handler that responds with a status and a body.
func status(code int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i+1 < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
	}
}

var (
	// down is the response of a gateway whose servers are down. Some SDKs do
	// not retry errors in JSON.
	down = status(http.StatusServiceUnavailable, "<html>")
	// later is the response of an API server of Kubernetes that is not ready.
	later = status(http.StatusServiceUnavailable, "<html>", "Retry-After", "1")
)

// rateLimited is GitHub's response when the hourly limit is reached.
func rateLimited(w http.ResponseWriter, r *http.Request) {
	reset := strconv.FormatInt(time.Now().Add(2*time.Second).Unix(), 10)
	status(http.StatusForbidden, "", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", reset)(w, r)
}

// chunksFail begins a resumable upload to Google Cloud Storage and then fails.
func chunksFail(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.RequestURI, "upload_id") {
		down(w, r)
		return
	}
	w.Header().Set("Location", "http://service.test/upload?upload_id=1")
}

// requests returns the number of requests that the server gets for one call, in
// virtual time, so that the waits are those of the defaults. A call that
// succeeds fails the test.
func (r row) requests(t *testing.T, retries bool, budget httpretry.Budget) int {
	t.Helper()
	var n atomic.Int64
	answer := r.answer
	if answer == nil {
		answer = down
	}
	synctest.Test(t, func(t *testing.T) {
		base := faults.Pipe(t, func(w http.ResponseWriter, req *http.Request) {
			if strings.Contains(req.RequestURI, r.counted) {
				n.Add(1)
			}
			_, err := io.Copy(io.Discard, req.Body)
			assert.NoError(t, err)
			answer(w, req)
		})
		// Also for SDKs whose URL is that of the service.
		base.DialTLSContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			return base.DialContext(ctx, network, addr)
		}
		policy := r.policy
		policy.Budget = budget
		transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
		require.NoError(t, err)
		assert.Error(t, r.call(setup{t.Context(), t, "http://service.test",
			&http.Client{Transport: transport}, retries, r.write}))
	})
	return int(n.Load())
}

// TestMultiplied checks that the table in the README has these rows in this
// order, with the figures that are measured here, and the versions that go.mod
// requires.
func TestMultiplied(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	gomod, err := os.ReadFile("go.mod")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(readme), "| SDK | plug in | turn off | off | on | idle |\n|---|---|---|---|---|---|\n")
	text, _, _ = strings.Cut(text, "\n\n")
	table, link := strings.Split(text, "\n"), regexp.MustCompile(`\[([^]]*)\]\([^)]*\)`)
	require.Len(t, table, len(multiplied()))
	for i, r := range multiplied() {
		t.Run(r.sdk, func(t *testing.T) {
			cells := strings.Split(strings.Trim(table[i], "| "), " | ")
			require.Len(t, cells, 6)
			assert.True(t, strings.HasPrefix(link.ReplaceAllString(cells[0], "$1"), r.sdk), cells[0])
			version := regexp.MustCompile(` (v\d+[.\d]*)|$`).FindStringSubmatch(r.sdk)[1]
			assert.Regexp(t, `(?m)^\t`+regexp.QuoteMeta(r.module+" "+version)+`(\.|v)`, string(gomod))
			for column, got := range []int{
				r.requests(t, false, httpretry.Unlimited{}),
				r.requests(t, true, httpretry.Unlimited{}),
				r.requests(t, true, nil),
			} {
				// An SDK that retries for a time has waits that are random, as
				// those of httpretry are.
				cell, isBound := strings.CutPrefix(cells[3+column], "≥ ")
				want, err := strconv.Atoi(cell)
				require.NoError(t, err)
				assert.True(t, got == want || isBound && got > want, "column %d: %d, want %s", column, got, cells[3+column])
			}
		})
	}
}

// TestNotes checks the notes in the tables: requests of other calls, or for
// other failures, with the SDK's own retries on. httpretry sends a write once.
// The SDKs send it again if their own retries are on.
func TestNotes(t *testing.T) {
	appends := httpretry.Policy{Idempotent: func(*http.Request) bool { return false }}
	inJSON := status(http.StatusServiceUnavailable, `{"error":{"type":"api_error","message":"m"}}`)
	limited := status(http.StatusTooManyRequests, "", "Retry-After", "30")
	for name, tt := range map[string]struct {
		row
		want int
	}{
		"1: go-github retries no 503":          {row{call: callGithub, policy: policies.GitHub()}, 3},
		"2: resty retries errors only":         {row{call: callRestyErrors}, 3},
		"3: storage/v1 retries chunks alone":   {row{call: callGoogleStorage, write: true}, 3},
		"4: client-go needs a Retry-After":     {row{call: callKubernetes}, 3},
		"5: hcloud-go retries no 503":          {row{call: callHcloud}, 3},
		"6: slack-go's OptionRetry, for a 429": {row{call: callSlackLimited, policy: policies.Slack(), answer: limited}, 12},
		"stripe-go retries few errors in JSON": {row{call: callStripe, answer: inJSON}, 3},
		"azblob appends":                       {row{call: calls(newAzblob, nil, appendBlock), policy: appends, write: true}, 4},
		"1: go-github creates":                 {row{call: callGithub, policy: policies.GitHub(), answer: rateLimited, write: true}, 6},
		"client-go creates":                    {row{call: callKubernetes, answer: later, write: true}, 11},
		"gitlab creates":                       {row{call: calls(newGitlab, nil, createGitlabIssue), write: true}, 6},
		"go-elasticsearch adds":                {row{call: calls(newElasticsearch, nil, esBulk), write: true}, 4},
		"openai-go uploads":                    {row{call: callOpenAI, write: true}, 3},
		"opensearch-go adds":                   {row{call: callOpensearch, counted: "/_", write: true}, 7},
		"resty posts":                          {row{call: calls(newResty, nil, restyPost("")), write: true}, 3},
		"vault/api puts":                       {row{call: calls(newVault, nil, putSecret), policy: appends, write: true}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			assert.Equal(t, tt.want, tt.requests(t, true, httpretry.Unlimited{}))
		})
	}
}

func callOpensearch(s setup) error {
	// Its requests for the state of the node would use the budget, too.
	s.t.Setenv("OPENSEARCH_GO_NODE_STATS_INTERVAL", "-1s")
	return calls(newOpensearch, osSearch, osBulk)(s)
}

func callRestyErrors(s setup) error {
	client, err := newResty(s)
	require.NoError(s.t, err)
	client.RetryConditions = nil
	return restyGet(s, client)
}

func callSlackLimited(s setup) error {
	client := slack.New("xoxb-test", slack.OptionAPIURL(s.url+"/api/"),
		slack.OptionHTTPClient(s.client), slack.OptionRetry(3))
	_, err := client.AuthTestContext(s)
	return err
}
