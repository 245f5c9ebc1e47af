package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

// quick is a policy without waits.
func quick(p httpretry.Policy) httpretry.Policy {
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

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
	s.tokens = sdktest.New(t, http.HandlerFunc(s.token), tokens...)
	s.api = sdktest.New(t, http.HandlerFunc(s.serve), api...)
	t.Cleanup(func() {
		for _, r := range s.tokens.Requests() {
			if id, secret, _ := r.BasicAuth(); id != "id" || secret != "secret" {
				t.Errorf("the token endpoint got %q and %q", id, secret)
			}
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
	valid := 0 // requests with the latest token
	for _, other := range s.api.Requests() {
		if other.Header.Get("Authorization") == fmt.Sprintf("Bearer t%d", s.issued.Load()) {
			valid++
		}
	}
	if r.Header.Get("Authorization") != fmt.Sprintf("Bearer t%d", s.issued.Load()) || !s.lasting && valid != 1 {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_, _ = io.Copy(w, r.Body)
}

func (s *service) config() clientcredentials.Config {
	return clientcredentials.Config{ClientID: "id", ClientSecret: "secret", TokenURL: s.tokens.URL}
}

func (s *service) client(t *testing.T, tokens, api httpretry.Policy) *http.Client {
	t.Helper()
	client, err := newClient(s.config(), quick(tokens), quick(api))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// authorizations returns the tokens that the API got, by attempt.
func (s *service) authorizations() (all []string) {
	for _, r := range s.api.Requests() {
		all = append(all, r.Header.Get("Authorization"))
	}
	return all
}

func get(ctx context.Context, client *http.Client, url string) (status int, err error) {
	return send(ctx, client, http.MethodGet, url)
}

func send(ctx context.Context, client *http.Client, method, url string) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader("content"))
	if err != nil {
		return 0, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	return resp.StatusCode, resp.Body.Close()
}

func TestRun(t *testing.T) {
	s := newService(t, nil, nil)
	var out bytes.Buffer
	if err := run(t.Context(), s.client(t, tokenPolicy(), apiPolicy()), s.api.URL, &out); err != nil {
		t.Fatal(err)
	}
	if want := "GET /items: 200 OK: \nPOST /items: 200 OK: {\"name\":\"new\"}\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
}

var unavailable = sdktest.Answer(503, "")

// A token that expires between two attempts is renewed for the second.
func TestEachAttemptHasAValidToken(t *testing.T) {
	s := newService(t, nil, []sdktest.Fault{sdktest.Reset(), unavailable})
	status, err := get(t.Context(), s.client(t, tokenPolicy(), apiPolicy()), s.api.URL)
	if err != nil || status != 200 {
		t.Errorf("status %d, error %v, want 200", status, err)
	}
	if got, want := s.authorizations(), []string{"Bearer t1", "Bearer t2", "Bearer t3"}; !slices.Equal(got, want) {
		t.Errorf("attempts had %q, want %q", got, want)
	}
}

// A token that remains valid is requested once.
func TestTokenIsReused(t *testing.T) {
	s := newService(t, nil, []sdktest.Fault{unavailable})
	s.lasting = true
	client := s.client(t, tokenPolicy(), apiPolicy())
	for range 2 {
		if status, err := get(t.Context(), client, s.api.URL); err != nil || status != 200 {
			t.Errorf("status %d, error %v, want 200", status, err)
		}
	}
	if got := len(s.tokens.Requests()); got != 1 || len(s.api.Requests()) != 3 {
		t.Errorf("%d tokens for %d requests, want 1 for 3", got, len(s.api.Requests()))
	}
}

// In the wrong order, which oauth2 creates from a client in the context, the
// second attempt has the token of the first, which has expired.
func TestWrongOrder(t *testing.T) {
	s := newService(t, nil, []sdktest.Fault{unavailable})
	transport, err := httpretry.New(httpretry.Config{Policy: quick(apiPolicy())})
	if err != nil {
		t.Fatal(err)
	}
	config := s.config()
	config.AuthStyle = oauth2.AuthStyleInHeader
	client := config.Client(context.WithValue(t.Context(), oauth2.HTTPClient, &http.Client{Transport: transport}))
	status, err := get(t.Context(), client, s.api.URL)
	if err != nil || status != 401 {
		t.Errorf("status %d, error %v, want 401", status, err)
	}
	if got, want := s.authorizations(), []string{"Bearer t1", "Bearer t1"}; !slices.Equal(got, want) {
		t.Errorf("attempts had %q, want %q", got, want)
	}
}

// A token that the API rejects before it expires is a case for the caller,
// because oauth2 has no way to discard it.
func TestRevokedToken(t *testing.T) {
	s := newService(t, nil, []sdktest.Fault{sdktest.Answer(401, "")})
	s.lasting = true
	status, err := get(t.Context(), s.client(t, tokenPolicy(), apiPolicy()), s.api.URL)
	if got := len(s.api.Requests()); err != nil || status != 401 || got != 1 {
		t.Errorf("status %d after %d requests, want 401 after 1; error %v", status, got, err)
	}
}

// A failed request for a token is retried as the policy for tokens allows, and
// not once more by the attempts of the API's request.
func TestTokenEndpointFails(t *testing.T) {
	down := slices.Repeat([]sdktest.Fault{unavailable}, 20)
	for name, test := range map[string]struct {
		faults []sdktest.Fault
		policy httpretry.Policy // for tokens
		want   int              // requests for tokens
		ok     bool
	}{
		"503 once":                    {down[:1], tokenPolicy(), 2, true},
		"503 once, not idempotent":    {down[:1], httpretry.Policy{}, 1, false},
		"lost":                        {[]sdktest.Fault{sdktest.Lost()}, tokenPolicy(), 2, true},
		"lost, not idempotent":        {[]sdktest.Fault{sdktest.Lost()}, httpretry.Policy{}, 1, false},
		"down: not 3 times 3 of them": {down, tokenPolicy(), 3, false},
		"reset, always":               {slices.Repeat([]sdktest.Fault{sdktest.Reset()}, 20), tokenPolicy(), 3, false},
		"a wrong secret": {[]sdktest.Fault{sdktest.Answer(401, `{"error":"invalid_client"}`,
			"Content-Type", "application/json")}, tokenPolicy(), 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			// A POST without a key is not sent without a token, and sent once
			// with one.
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				s := newService(t, test.faults, nil)
				status, err := send(t.Context(), s.client(t, test.policy, apiPolicy()), method, s.api.URL)
				if got := len(s.tokens.Requests()); got != test.want || (status == 200) != test.ok || (err == nil) != test.ok {
					t.Errorf("%s: %d requests for tokens, want %d; status %d, error %v", method, got, test.want, status, err)
				}
				if got := len(s.api.Requests()); (got == 1) != test.ok || got > 1 {
					t.Errorf("%s: %d requests to the API", method, got)
				}
			}
		})
	}
}

// Without classify, attempts for tokens multiply.
func TestWithoutClassify(t *testing.T) {
	s := newService(t, slices.Repeat([]sdktest.Fault{unavailable}, 20), nil)
	tokens, api := tokenPolicy(), apiPolicy()
	tokens.Budget, api.Budget, api.Classify = httpretry.Unlimited{}, httpretry.Unlimited{}, nil
	_, err := get(t.Context(), s.client(t, tokens, api), s.api.URL)
	if _, ok := errors.AsType[*oauth2.RetrieveError](err); !ok || len(s.tokens.Requests()) != 9 {
		t.Errorf("%d requests for tokens, want 9; error %v, want a RetrieveError", len(s.tokens.Requests()), err)
	}
}

// Without AuthStyle, oauth2 sends all attempts again, with the secret in the
// form.
func TestWithoutAuthStyle(t *testing.T) {
	for style, want := range map[oauth2.AuthStyle]int{oauth2.AuthStyleAutoDetect: 6, oauth2.AuthStyleInParams: 3} {
		tokens := sdktest.New(t, http.NotFoundHandler(), slices.Repeat([]sdktest.Fault{unavailable}, 20)...)
		p := quick(tokenPolicy())
		p.Budget = httpretry.Unlimited{}
		transport, err := httpretry.New(httpretry.Config{Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		config := clientcredentials.Config{ClientID: "id", ClientSecret: "secret", TokenURL: tokens.URL, AuthStyle: style}
		ctx := context.WithValue(t.Context(), oauth2.HTTPClient, &http.Client{Transport: transport})
		if _, err := config.Token(ctx); err == nil || len(tokens.Requests()) != want {
			t.Errorf("style %d: %d requests, want %d; error %v, want one", style, len(tokens.Requests()), want, err)
		}
	}
}

// The client cannot know what the API did, so there is no retry.
func TestLostAnswerIsNotDoubled(t *testing.T) {
	s := newService(t, nil, []sdktest.Fault{sdktest.Lost()})
	_, err := send(t.Context(), s.client(t, tokenPolicy(), apiPolicy()), http.MethodPost, s.api.URL)
	if got := s.api.Executed("POST"); err == nil || got != 1 {
		t.Errorf("executed %d times, want 1; error %v, want one", got, err)
	}
}

// With a key there is a retry, with the same key, a new token and the complete
// body.
func TestKey(t *testing.T) {
	s := newService(t, nil, []sdktest.Fault{sdktest.Reset()})
	api := apiPolicy()
	api.NewIdempotencyKey = httpretry.RandomKey
	status, err := send(t.Context(), s.client(t, tokenPolicy(), api), http.MethodPost, s.api.URL)
	requests := s.api.Requests()
	if err != nil || status != 200 || len(requests) != 2 {
		t.Fatalf("status %d after %d requests, want 200 after 2; error %v", status, len(requests), err)
	}
	first, second := requests[0], requests[1]
	if key := first.Header.Get("Idempotency-Key"); key == "" || key != second.Header.Get("Idempotency-Key") {
		t.Errorf("keys %q and %q, want one", key, second.Header.Get("Idempotency-Key"))
	}
	if string(first.Content) != "content" || string(second.Content) != "content" {
		t.Errorf("the server got %q and %q", first.Content, second.Content)
	}
	if got, want := s.authorizations(), []string{"Bearer t1", "Bearer t2"}; !slices.Equal(got, want) {
		t.Errorf("attempts had %q, want %q", got, want)
	}
}
