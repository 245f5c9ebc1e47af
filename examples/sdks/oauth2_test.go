package sdks

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

// tokenPolicy is for the token endpoint. Its requests are POSTs without a key,
// but with client credentials a second token does no harm. With a refresh
// token, leave Idempotent nil. Where refresh tokens are rotated, one that is
// used twice counts as stolen (RFC 9700, section 4.14.2).
func tokenPolicy() httpretry.Policy {
	return httpretry.Policy{Idempotent: func(*http.Request) bool { return true }}
}

// apiPolicy does not retry a failed request for a token, which has been retried
// already. Its error is a RetrieveError, or comes from the http.Client that
// sends it.
func apiPolicy() httpretry.Policy {
	classify := func(req *http.Request, resp *http.Response, err error) httpretry.Outcome {
		_, refused := errors.AsType[*oauth2.RetrieveError](err)
		_, failed := errors.AsType[*url.Error](err)
		if refused || failed {
			return httpretry.Final
		}
		return httpretry.Classify(req, resp, err)
	}
	return httpretry.Policy{Classify: classify}
}

// newOAuth2 returns a client whose oauth2.Transport is below its
// RetryTransport, so that each attempt gets a valid token. In the other order,
// which config.Client and oauth2.NewClient create, all attempts have the token
// of the first.
func newOAuth2(
	config clientcredentials.Config, tokens, api httpretry.Policy, base http.RoundTripper,
) (*http.Client, error) {
	// By default, oauth2 tries where the server expects the secret. It takes
	// any failure for a wrong place, and sends all attempts again with the
	// other one. For a server that expects the secret in the form, set
	// oauth2.AuthStyleInParams.
	config.AuthStyle = oauth2.AuthStyleInHeader

	inner, err := httpretry.New(httpretry.Config{Policy: tokens})
	if err != nil {
		return nil, err
	}
	ctx := context.WithValue(context.Background(), oauth2.HTTPClient, &http.Client{Transport: inner})
	layer := &oauth2.Transport{Source: config.TokenSource(ctx), Base: base}
	outer, err := httpretry.New(httpretry.Config{Base: httpretry.Through(layer, base), Policy: api})
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: outer}, nil
}

// callOAuth2 requests a token. By default, oauth2 sends the secret in another
// way if the first one fails.
func callOAuth2(s setup) error {
	config := clientcredentials.Config{ClientID: "id", ClientSecret: "secret", TokenURL: s.url}
	if !s.retries {
		config.AuthStyle = oauth2.AuthStyleInHeader
	}
	_, err := config.Token(context.WithValue(s.Context, oauth2.HTTPClient, s.client))
	return err
}

// tokenService is a token endpoint, and an API that accepts the latest token.
type tokenService struct {
	tokens, api *sdktest.Server
	config      clientcredentials.Config
	issued      atomic.Int64
}

// newTokenService returns a service whose tokens expire after some seconds. One
// second is less than oauth2 needs to use a token twice.
func newTokenService(t *testing.T, seconds int, tokens, api []sdktest.Fault) *tokenService {
	t.Helper()
	s := new(tokenService)
	s.tokens = sdktest.New(t, func(w http.ResponseWriter, r *http.Request) {
		id, secret, _ := r.BasicAuth()
		assert.Equal(t, "id secret", id+" "+secret)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":"t%d","token_type":"Bearer","expires_in":%d}`, s.issued.Add(1), seconds)
	}, tokens...)
	s.api = sdktest.New(t, func(w http.ResponseWriter, r *http.Request) {
		used := s.authorizations()
		expired := seconds == 1 && len(used) > 1 && used[len(used)-2] == used[len(used)-1]
		if expired || r.Header.Get("Authorization") != fmt.Sprintf("Bearer t%d", s.issued.Load()) {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}, api...)
	s.config = clientcredentials.Config{ClientID: "id", ClientSecret: "secret", TokenURL: s.tokens.URL,
		AuthStyle: oauth2.AuthStyleInHeader}
	return s
}

// authorizations returns the tokens that the API got, by attempt.
func (s *tokenService) authorizations() (all []string) {
	for _, r := range s.api.Requests() {
		all = append(all, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	}
	return all
}

// send sends a request to the API with a client of newOAuth2, or with another
// one. It returns the status, or 0 after an error.
func (s *tokenService) send(
	t *testing.T, tokens, api httpretry.Policy, method string, other ...*http.Client,
) (int, error) {
	t.Helper()
	client, err := newOAuth2(s.config, quick(tokens), quick(api), http.DefaultTransport)
	require.NoError(t, err)
	req, err := http.NewRequestWithContext(t.Context(), method, s.api.URL, strings.NewReader("content"))
	require.NoError(t, err)
	resp, err := append(other, client)[0].Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func quick(p httpretry.Policy) httpretry.Policy {
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

var unavailable = sdktest.Answer(503, "")

// A token that expires between two attempts is renewed for the second, and one
// that remains valid is requested once. A token that the API rejects before it
// expires is a case for the caller, because oauth2 has no way to discard it.
// With a key, a POST has a retry with a new token and the complete body.
func TestOAuth2Tokens(t *testing.T) {
	keyed := apiPolicy()
	keyed.NewIdempotencyKey = httpretry.RandomKey
	for name, test := range map[string]struct {
		faults          []sdktest.Fault
		seconds, status int
		method          string
		want            []string
	}{
		"expires": {[]sdktest.Fault{sdktest.Reset, unavailable}, 1, 200, http.MethodGet, []string{"t1", "t2", "t3"}},
		"valid":   {[]sdktest.Fault{unavailable}, 3600, 200, http.MethodGet, []string{"t1", "t1"}},
		"revoked": {[]sdktest.Fault{sdktest.Answer(401, "")}, 3600, 401, http.MethodGet, []string{"t1"}},
		"key":     {[]sdktest.Fault{sdktest.Reset}, 1, 200, http.MethodPost, []string{"t1", "t2"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTokenService(t, test.seconds, nil, test.faults)
			status, err := s.send(t, tokenPolicy(), keyed, test.method)
			require.NoError(t, err)
			assert.Equal(t, test.status, status)
			assert.Equal(t, test.want, s.authorizations())
			for _, r := range s.api.Requests() {
				assert.Equal(t, "content", string(r.Content))
			}
		})
	}
	// oauth2 creates the wrong order from a client in the context. The second
	// attempt has the token of the first, which has expired.
	s := newTokenService(t, 1, nil, []sdktest.Fault{unavailable})
	transport, err := httpretry.New(httpretry.Config{Policy: quick(apiPolicy())})
	require.NoError(t, err)
	ctx := context.WithValue(t.Context(), oauth2.HTTPClient, &http.Client{Transport: transport})
	status, err := s.send(t, tokenPolicy(), apiPolicy(), http.MethodGet, s.config.Client(ctx))
	require.NoError(t, err)
	assert.Equal(t, 401, status)
	assert.Equal(t, []string{"t1", "t1"}, s.authorizations())
}

// A failed request for a token is retried as the policy for tokens allows, and
// not once more by the attempts of the API request. That is sent once, and only
// with a token.
func TestOAuth2TokenEndpointFails(t *testing.T) {
	unlimited := func(p httpretry.Policy) httpretry.Policy { p.Budget = httpretry.Unlimited{}; return p }
	for name, test := range map[string]struct {
		faults      []sdktest.Fault
		tokens, api httpretry.Policy
		want        int // requests for tokens; the call succeeds if there are two
	}{
		"503 once":                    {[]sdktest.Fault{unavailable}, tokenPolicy(), apiPolicy(), 2},
		"503 once, not idempotent":    {[]sdktest.Fault{unavailable}, httpretry.Policy{}, apiPolicy(), 1},
		"down: not 3 times 3 of them": {sdktest.Always(unavailable), tokenPolicy(), apiPolicy(), 3},
		"reset, always":               {sdktest.Always(sdktest.Reset), tokenPolicy(), apiPolicy(), 3},
		"a wrong secret":              {[]sdktest.Fault{sdktest.Answer(401, `{}`)}, tokenPolicy(), apiPolicy(), 1},
		"without Classify":            {sdktest.Always(unavailable), tokenPolicy(), httpretry.Policy{}, 9},
	} {
		t.Run(name, func(t *testing.T) {
			s := newTokenService(t, 1, test.faults, nil)
			status, err := s.send(t, unlimited(test.tokens), unlimited(test.api), http.MethodGet)
			assert.Len(t, s.tokens.Requests(), test.want)
			assert.Equal(t, test.want == 2, status == 200, "%v", err)
			assert.Equal(t, status == 200, len(s.api.Requests()) == 1)
		})
	}
}
