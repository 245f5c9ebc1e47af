package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-github/v89/github"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

const token = "ghp_test"

// quick is the recommended policy without waits.
func quick() httpretry.Policy {
	p := policy()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	return p
}

// start returns a server that supports enough of GitHub's API, and a client. At
// the end it checks that every attempt was authorized.
func start(t *testing.T, p httpretry.Policy, faults ...sdktest.Fault) (*sdktest.Server, *github.Client) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v3/repos/o/r", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Remaining", "4999")
		_, _ = w.Write([]byte(`{"full_name":"o/r","open_issues_count":7}`))
	})
	mux.HandleFunc("POST /api/v3/repos/o/r/issues", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"number":8,"title":"T"}`))
	})
	mux.HandleFunc("POST /api/uploads/repos/o/r/releases/1/assets", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(`{"id":9}`))
	})
	server := sdktest.New(t, mux, faults...)
	client, err := newClient(server.URL, token, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, r := range server.Requests() {
			if got := r.Header.Get("Authorization"); got != "Bearer "+token {
				t.Errorf("%s %s: Authorization %q", r.Method, r.RequestURI, got)
			}
		}
	})
	return server, client
}

// primary is the response when the hourly limit is reached.
func primary(status int, reset time.Time) sdktest.Fault {
	return sdktest.Answer(status, `{"message":"API rate limit exceeded for user ID 1."}`,
		"X-RateLimit-Limit", "5000", "X-RateLimit-Remaining", "0",
		"X-RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
}

// secondary is the response to too many requests at once.
func secondary(status int, retryAfter string) sdktest.Fault {
	return sdktest.Answer(status,
		`{"message":"You have exceeded a secondary rate limit.",`+
			`"documentation_url":"https://docs.github.com/rest/overview/rate-limits-for-the-rest-api#about-secondary-rate-limits"}`,
		"X-RateLimit-Remaining", "4000", "Retry-After", retryAfter)
}

func get(ctx context.Context, client *github.Client) error {
	_, _, err := client.Repositories.Get(ctx, "o", "r")
	return err
}

func create(ctx context.Context, client *github.Client) error {
	_, _, err := client.Issues.Create(ctx, "o", "r", &github.IssueRequest{Title: new("T")})
	return err
}

func TestRun(t *testing.T) {
	server, client := start(t, quick(), secondary(403, "0"))
	var out bytes.Buffer
	if err := run(t.Context(), client, "o", "r", "T", &out); err != nil {
		t.Fatal(err)
	}
	if want := "o/r has 7 open issues\nopened #8, \"T\"\n"; out.String() != want {
		t.Errorf("printed %q, want %q", out.String(), want)
	}
	want := "GET /api/v3/repos/o/r \"\"\nGET /api/v3/repos/o/r \"1\"\n" +
		"POST /api/v3/repos/o/r/issues \"\"\nPOST /api/v3/repos/o/r/issues \"1\"\n"
	if got := server.Summary(); got != want {
		t.Errorf("the server saw\n%swant\n%s", got, want)
	}
}

func TestFailures(t *testing.T) {
	past := time.Now()
	for name, test := range map[string]struct {
		fault     sdktest.Fault
		get, post int // requests; the call succeeds if there are two
	}{
		"primary limit, 403":     {primary(403, past), 2, 2},
		"primary limit, 429":     {primary(429, past), 2, 2},
		"secondary limit, 403":   {secondary(403, "0"), 2, 2},
		"secondary limit, 429":   {secondary(429, "0"), 2, 2},
		"429 that says nothing":  {sdktest.Answer(429, `{"message":"slow down"}`), 1, 1},
		"403 without permission": {sdktest.Answer(403, `{"message":"Forbidden"}`, "X-RateLimit-Remaining", "4000"), 1, 1},
		"503":                    {sdktest.Answer(503, `{"message":"No server is currently available"}`), 2, 1},
		"reset":                  {sdktest.Reset(), 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, call := range []struct {
				method string
				do     func(context.Context, *github.Client) error
				want   int
			}{{"GET", get, test.get}, {"POST", create, test.post}} {
				server, client := start(t, quick(), test.fault)
				err := call.do(t.Context(), client)
				if got := len(server.Requests()); got != call.want || (err == nil) != (call.want == 2) {
					t.Errorf("%s: %d requests, want %d; error %v", call.method, got, call.want, err)
				}
			}
		})
	}
}

// The client cannot know that the issue was opened, so it is not opened again.
func TestLostAnswerIsNotDoubled(t *testing.T) {
	server, client := start(t, quick(), sdktest.Lost())
	err := create(t.Context(), client)
	if got := server.Executed("POST"); err == nil || got != 1 {
		t.Errorf("executed %d times, want 1; error %v, want one", got, err)
	}
}

func TestWaitsUntilTheReset(t *testing.T) {
	server, client := start(t, quick(), func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
		primary(403, time.Now().Add(time.Second))(s, w, r)
	})
	began := time.Now()
	err := create(t.Context(), client)
	if took := time.Since(began); err != nil || took < time.Second || len(server.Requests()) != 2 {
		t.Errorf("%d requests in %v, want 2 in a second or more; error %v", len(server.Requests()), took, err)
	}
}

// A distant reset ends the call at once. go-github refuses the next calls
// itself, so they do not reach the transport.
func TestLongLimit(t *testing.T) {
	server, client := start(t, quick(), primary(403, time.Now().Add(time.Hour)))
	for range 3 {
		limit, ok := errors.AsType[*github.RateLimitError](get(t.Context(), client))
		if !ok || time.Until(limit.Rate.Reset.Time) < 50*time.Minute {
			t.Fatalf("error %v, want one that says when to come back", limit)
		}
	}
	if got := len(server.Requests()); got != 1 {
		t.Errorf("%d requests, want 1", got)
	}
}

// The POST of an upload that was refused is retried with the complete file.
func TestUpload(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 20_000)
	for _, test := range []struct {
		fault sdktest.Fault
		want  int
	}{{secondary(403, "0"), 2}, {sdktest.Answer(503, ""), 1}} {
		server, client := start(t, quick(), test.fault)
		file := sdktest.File(t, "asset.bin", content)
		_, _, err := client.Repositories.UploadReleaseAsset(t.Context(), "o", "r", 1, &github.UploadOptions{Name: "asset.bin"}, file)
		requests := server.Requests()
		if len(requests) != test.want || (err == nil) != (test.want == 2) {
			t.Errorf("%d requests, want %d; error %v", len(requests), test.want, err)
		}
		for _, r := range requests {
			if sha256.Sum256(r.Content) != sha256.Sum256(content) {
				t.Errorf("the server got %d bytes, which are not the file's %d", len(r.Content), len(content))
			}
		}
	}
}

// With the option that newClient warns of, requests multiply. go-github does
// not rewind the body of a POST that it retries. The POST fails, unless
// net/http rewinds the body, which it does on a connection that it reuses.
func TestSleepUntilReset(t *testing.T) {
	p := quick()
	p.Budget = httpretry.Unlimited{} // the default would end this earlier
	limited := primary(403, time.Now().Add(-time.Minute))
	always := []sdktest.Fault{limited, limited, limited, limited, limited, limited, limited, limited, limited}
	multiplied := context.WithValue(t.Context(), github.SleepUntilPrimaryRateLimitResetWhenRateLimited, true)
	for _, test := range []struct {
		ctx  context.Context
		want int
	}{{t.Context(), 3}, {multiplied, 6}} {
		server, client := start(t, p, always...)
		err := get(test.ctx, client)
		if got := len(server.Requests()); err == nil || got != test.want {
			t.Errorf("%d requests, want %d; error %v, want one", got, test.want, err)
		}
	}

	server, client := start(t, p, limited, limited, limited) // the fourth request would succeed
	err := create(multiplied, client)
	switch got := len(server.Requests()); {
	case err == nil && got == 4:
	case err != nil && strings.Contains(err.Error(), "with Body length 0") && got == 3:
	default:
		t.Errorf("%d requests and error %v, want 4 and none, or 3 and one about the body", got, err)
	}
}
