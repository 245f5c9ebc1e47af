package multiply

import (
	"net/http"
	"strings"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// rows returns the table in the order of the README.
func rows() []row {
	tokens := httpretry.Policy{Idempotent: func(*http.Request) bool { return true }}
	search := policies.Reads(httpretry.Policy{}, "/_search")
	return []row{
		{sdk: "go-github v89", module: "github.com/google/go-github/v89", call: callGithub,
			policy: policies.GitHub(), answer: rateLimited, off: 3, on: 6, budget: 6},
		{sdk: "stripe-go v85", module: "github.com/stripe/stripe-go/v85", call: callStripe,
			off: 3, on: 9, budget: 8},
		{sdk: "openai-go v3", module: "github.com/openai/openai-go/v3", call: callOpenAI,
			off: 3, on: 9, budget: 8},
		{sdk: "x/oauth2 v0.37", module: "golang.org/x/oauth2", call: callOAuth2,
			policy: tokens, off: 3, on: 6, budget: 6},
		{sdk: "resty v2.17", module: "github.com/go-resty/resty/v2", call: callResty,
			off: 3, on: 9, budget: 8},
		{sdk: "go-elasticsearch v9", module: "github.com/elastic/go-elasticsearch/v9",
			call: callElasticsearch, policy: search, off: 3, on: 12, budget: 9},
		{sdk: "minio-go v7", module: "github.com/minio/minio-go/v7", call: callMinio,
			off: 3, on: 30, budget: 15},
		{sdk: "aws-sdk-go-v2", module: "github.com/aws/aws-sdk-go-v2/service/s3",
			call: callAWS, off: 3, on: 9, budget: 8},
		{sdk: "azblob v1.8", module: "github.com/Azure/azure-sdk-for-go/sdk/storage/azblob",
			call: callAzblob, off: 3, on: 12, budget: 9},
		{sdk: "storage/v1", module: "google.golang.org/api", call: callGoogleStorage,
			counted: "upload_id", policy: tokens, answer: chunksFail,
			off: 3, on: 21, budget: 13, more: true},
		{sdk: "client-go v0.37", module: "k8s.io/client-go", call: callKubernetes,
			answer: later, off: 3, on: 33, budget: 16},
		{sdk: "gitlab v2.64", module: "gitlab.com/gitlab-org/api/client-go/v2", call: callGitLab,
			off: 3, on: 18, budget: 11},
		{sdk: "vault/api v1.23", module: "github.com/hashicorp/vault/api", call: callVault,
			off: 3, on: 9, budget: 8},
		{sdk: "opensearch-go v4", module: "github.com/opensearch-project/opensearch-go/v4",
			call: callOpenSearch, policy: search, counted: "/_search", off: 3, on: 21, budget: 12},
		{sdk: "anthropic-sdk-go v1.84", module: "github.com/anthropics/anthropic-sdk-go",
			call: callAnthropic, policy: policies.Anthropic(), off: 3, on: 9, budget: 8},
		{sdk: "cloudflare-go v6", module: "github.com/cloudflare/cloudflare-go/v6",
			call: callCloudflare, off: 3, on: 33, budget: 16},
		{sdk: "hcloud-go v2.52", module: "github.com/hetznercloud/hcloud-go/v2",
			call: callHcloud, answer: badGateway, off: 3, on: 18, budget: 11},
		{sdk: "meilisearch-go v0.36", module: "github.com/meilisearch/meilisearch-go",
			call: callMeilisearch, policy: policies.Reads(httpretry.Policy{}, "/indexes/*/search"),
			off: 3, on: 12, budget: 9},
		{sdk: "slack-go v0.35", module: "github.com/slack-go/slack", call: callSlack,
			policy: policies.Slack(), off: 3, on: 12, budget: 9},
		{sdk: "LINE bot SDK v8", module: "github.com/line/line-bot-sdk-go/v8", call: callLINE,
			off: 3, on: 3, budget: 3},
		{sdk: "twilio-go v1.31", module: "github.com/twilio/twilio-go", call: callTwilio,
			off: 3, on: 3, budget: 3},
		{sdk: "twilio-go v1.31, voice/v3", module: "github.com/twilio/twilio-go", call: callTwilioV1,
			off: 6, on: 6, budget: 6},
		{sdk: "sentry-go v0.50", module: "github.com/getsentry/sentry-go", call: callSentry,
			off: 1, on: 1, budget: 1},
	}
}

// badGateway is one of the two statuses that hcloud-go retries.
func badGateway(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) }

// later is the response of an API server of Kubernetes that is not ready.
func later(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Retry-After", "1")
	down(w, r)
}

// rateLimited is GitHub's response when the hourly limit is reached.
func rateLimited(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("X-RateLimit-Remaining", "0")
	w.Header().Set("X-RateLimit-Reset", unixIn(2))
	w.WriteHeader(http.StatusForbidden)
}

// chunksFail begins a resumable upload to Google Cloud Storage and then fails.
func chunksFail(w http.ResponseWriter, r *http.Request) {
	if strings.Contains(r.RequestURI, "upload_id") {
		down(w, r)
		return
	}
	w.Header().Set("Location", server+"/upload?upload_id=1")
}
