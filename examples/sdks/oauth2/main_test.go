package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
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

// service is a token endpoint, and an API that accepts a token once, as if each
// token expired before the next request.
type service struct {
	tokens, api *sdktest.Server
	issued      atomic.Int64
	lasting     bool // the tokens are valid for an hour
}

func newService(t *testing.T, tokens, api []sdktest.Fault) *service {
	t.Helper()
	s := new(service)
	s.tokens = sdktest.New(t, s.token, tokens...)
	s.api = sdktest.New(t, s.serve, api...)
	t.Cleanup(func() {
		for _, r := range s.tokens.Requests() {
			id, secret, _ := r.BasicAuth()
			assert.Equal(t, "id secret", id+" "+secret)
		}
	})
	return s
}

func (s *service) token(w http.ResponseWriter, r *http.Request) {
	if r.FormValue("grant_type") != "client_credentials" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	lifetime := 1
	if s.lasting {
		lifetime = 3600
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, `{"access_token":"t%d","token_type":"Bearer","expires_in":%d}`, s.issued.Add(1), lifetime)
}

func (s *service) serve(w http.ResponseWriter, r *http.Request) {
	latest, uses := fmt.Sprintf("Bearer t%d", s.issued.Load()), 0
	for _, token := range s.authorizations() {
		if token == latest {
			uses++
		}
	}
	if r.Header.Get("Authorization") != latest || !s.lasting && uses != 1 {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_, _ = io.Copy(w, r.Body)
}

func (s *service) config() clientcredentials.Config {
	return clientcredentials.Config{ClientID: "id", ClientSecret: "secret", TokenURL: s.tokens.URL}
}

// client returns the program's client with these policies, but for the waits.
func (s *service) client(t *testing.T, tokens, api httpretry.Policy) *http.Client {
	t.Helper()
	client, err := newClient(s.config(), quick(tokens), quick(api))
	require.NoError(t, err)
	return client
}

func quick(p httpretry.Policy) httpretry.Policy {
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

// authorizations returns the tokens that the API got, by attempt.
func (s *service) authorizations() (all []string) {
	for _, r := range s.api.Requests() {
		all = append(all, r.Header.Get("Authorization"))
	}
	return all
}

// send sends a request to the API. It returns the status, or 0 after an error.
func (s *service) send(t *testing.T, client *http.Client, method string) (int, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.api.URL, strings.NewReader("content"))
	require.NoError(t, err)
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

var unavailable = sdktest.Answer(503, "")

func TestRun(t *testing.T) {
	s := newService(t, nil, nil)
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), s.client(t, tokenPolicy(), apiPolicy()), s.api.URL, &out))
	assert.Equal(t, "GET /items: 200 OK: \nPOST /items: 200 OK: {\"name\":\"new\"}\n", out.String())
}

// A token that expires between two attempts is renewed for the second, and one
// that remains valid is requested once. A token that the API rejects before it
// expires is a case for the caller, because oauth2 has no way to discard it.
func TestTokens(t *testing.T) {
	for name, test := range map[string]struct {
		faults  []sdktest.Fault
		lasting bool
		status  int
		want    []string
	}{
		"expires": {[]sdktest.Fault{sdktest.Reset, unavailable}, false, 200, []string{"Bearer t1", "Bearer t2", "Bearer t3"}},
		"valid":   {[]sdktest.Fault{unavailable}, true, 200, []string{"Bearer t1", "Bearer t1"}},
		"revoked": {[]sdktest.Fault{sdktest.Answer(401, "")}, true, 401, []string{"Bearer t1"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newService(t, nil, test.faults)
			s.lasting = test.lasting
			status, err := s.send(t, s.client(t, tokenPolicy(), apiPolicy()), http.MethodGet)
			require.NoError(t, err)
			assert.Equal(t, test.status, status)
			assert.Equal(t, test.want, s.authorizations())
		})
	}
}

// In the wrong order, which oauth2 creates from a client in the context, the
// second attempt has the token of the first, which has expired.
func TestWrongOrder(t *testing.T) {
	s := newService(t, nil, []sdktest.Fault{unavailable})
	transport, err := httpretry.New(httpretry.Config{Policy: quick(apiPolicy())})
	require.NoError(t, err)
	config := s.config()
	config.AuthStyle = oauth2.AuthStyleInHeader
	client := config.Client(context.WithValue(t.Context(), oauth2.HTTPClient, &http.Client{Transport: transport}))
	status, err := s.send(t, client, http.MethodGet)
	require.NoError(t, err)
	assert.Equal(t, 401, status)
	assert.Equal(t, []string{"Bearer t1", "Bearer t1"}, s.authorizations())
}

// A token that the API rejects before it expires is a case for the caller,
// because oauth2 has no way to discard it.
func TestRevokedToken(t *testing.T) {
	s := newService(t, nil, []sdktest.Fault{sdktest.Answer(401, "")})
	s.lasting = true
	status, err := s.send(t, s.client(t, tokenPolicy(), apiPolicy()), http.MethodGet)
	require.NoError(t, err)
	assert.Equal(t, 401, status)
	assert.Len(t, s.api.Requests(), 1)
}

// A failed request for a token is retried as the policy for tokens allows, and
// not once more by the attempts of the API request. That is sent once, and only
// with a token.
func TestTokenEndpointFails(t *testing.T) {
	for name, test := range map[string]struct {
		faults []sdktest.Fault
		policy httpretry.Policy // for tokens
		want   int              // requests for tokens; the call succeeds if there are two
	}{
		"503 once":                    {[]sdktest.Fault{unavailable}, tokenPolicy(), 2},
		"503 once, not idempotent":    {[]sdktest.Fault{unavailable}, httpretry.Policy{}, 1},
		"lost":                        {[]sdktest.Fault{sdktest.Lost}, tokenPolicy(), 2},
		"lost, not idempotent":        {[]sdktest.Fault{sdktest.Lost}, httpretry.Policy{}, 1},
		"down: not 3 times 3 of them": {sdktest.Always(unavailable), tokenPolicy(), 3},
		"reset, always":               {sdktest.Always(sdktest.Reset), tokenPolicy(), 3},
		"a wrong secret": {[]sdktest.Fault{sdktest.Answer(401, `{"error":"invalid_client"}`,
			"Content-Type", "application/json")}, tokenPolicy(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				s := newService(t, test.faults, nil)
				status, err := s.send(t, s.client(t, test.policy, apiPolicy()), method)
				assert.Len(t, s.tokens.Requests(), test.want, method)
				assert.Equal(t, test.want == 2, status == 200, "%s: %v", method, err)
				assert.Equal(t, status == 200, len(s.api.Requests()) == 1, method)
			}
		})
	}
}

// Without classify, attempts for tokens multiply.
func TestWithoutClassify(t *testing.T) {
	s := newService(t, sdktest.Always(unavailable), nil)
	tokens, api := tokenPolicy(), apiPolicy()
	tokens.Budget, api.Budget, api.Classify = httpretry.Unlimited{}, httpretry.Unlimited{}, nil
	_, err := s.send(t, s.client(t, tokens, api), http.MethodGet)
	_, ok := errors.AsType[*oauth2.RetrieveError](err)
	assert.True(t, ok, "%v", err)
	assert.Len(t, s.tokens.Requests(), 9)
}

// The client cannot know what the API did, so there is no retry of a POST. With
// a key there is one, with the same key, a new token and the complete body.
func TestKey(t *testing.T) {
	s := newService(t, nil, []sdktest.Fault{sdktest.Lost})
	_, err := s.send(t, s.client(t, tokenPolicy(), apiPolicy()), http.MethodPost)
	require.Error(t, err)
	assert.Len(t, s.api.Requests(), 1)

	s = newService(t, nil, []sdktest.Fault{sdktest.Reset})
	api := apiPolicy()
	api.NewIdempotencyKey = httpretry.RandomKey
	status, err := s.send(t, s.client(t, tokenPolicy(), api), http.MethodPost)
	require.NoError(t, err)
	assert.Equal(t, 200, status)
	s.api.Whole(t, 2, []byte("content"), nil)
	assert.Equal(t, []string{"Bearer t1", "Bearer t2"}, s.authorizations())
	keys := map[string]bool{}
	for _, r := range s.api.Requests() {
		keys[r.Header.Get("Idempotency-Key")] = true
	}
	assert.Len(t, keys, 1)
	assert.NotContains(t, keys, "")
}
