package httpretry_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"sync/atomic"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// A program that reads its configuration again keeps its transport.
func ExampleRetryTransport_SetPolicies() {
	srv := unreliable(2)
	defer srv.Close()
	transport := new(httpretry.RetryTransport)
	client := &http.Client{Transport: transport}

	for _, attempts := range []int{1, 2} {
		policy := httpretry.Policy{MaxAttempts: attempts, Backoff: strategies.Constant{}}
		if err := transport.SetPolicies(policy, nil); err != nil {
			fmt.Println(err)
			return
		}
		show(client.Get(srv.URL))
	}
	// Output:
	// 503 try again
	// 200 GET after 1 retries
}

// Origins shows which hosts fail, and how many retries they have left.
func ExampleRetryTransport_Origins() {
	down := unreliable(1000)
	defer down.Close()
	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{Backoff: strategies.Constant{}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}

	show((&http.Client{Transport: transport}).Get(down.URL))
	for _, o := range transport.Origins() {
		b := o.Budgets[0]
		fmt.Println(o.Origin == down.URL, "last:", o.LastFailure)
		fmt.Println("failed retries:", b.FailedRetries, "left:", b.Balance)
	}
	// Output:
	// 503 try again
	// true last: 503 Service Unavailable
	// failed retries: 2 left: 3
}

// A number without a unit is a number of nanoseconds.
func ExamplePolicy_Validate() {
	fmt.Println(httpretry.Policy{AttemptTimeout: 5, MaxAttempts: 4}.Validate())
	// Output:
	// httpretry: Policy.AttemptTimeout: 5ns: want at least 1ms, or 0 for no timeout
}

// An *Error has the number of attempts, and the error of the last one.
func ExampleError() {
	transport, err := httpretry.New(httpretry.Config{
		Base:   notThere{},
		Policy: httpretry.Policy{Backoff: strategies.Constant{}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	_, err = client.Get("http://api.example.com/")
	if e, ok := errors.AsType[*httpretry.Error](err); ok {
		fmt.Println("attempts:", e.Attempts)
		fmt.Println("reason:", e.Reason)
		fmt.Println("error:", e.Err)
	}
	// Output:
	// attempts: 3
	// reason: attempts_exhausted
	// error: unexpected EOF
}

// Status returns few different texts, and none that a server has sent, so they
// can be labels of metrics.
func ExampleEvent_Status() {
	for _, e := range []httpretry.Event{
		{Response: &http.Response{StatusCode: 503, Status: "503 a text of the server"}},
		{Err: &net.DNSError{Name: "api.example.com", IsNotFound: true}},
		{Err: context.DeadlineExceeded},
		{Err: io.ErrUnexpectedEOF},
	} {
		fmt.Println(e.Status())
	}
	// Output:
	// 503 Service Unavailable
	// name lookup failed
	// timeout
	// connection broken
}

func ExampleClassify() {
	req := httptest.NewRequest(http.MethodGet, "http://api.example.com/", nil)
	for _, status := range []int{200, 404, 425, 429, 503} {
		resp := &http.Response{StatusCode: status}
		fmt.Println(status, httpretry.Classify(req, resp, nil))
	}
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	fmt.Println(refused, httpretry.Classify(req, nil, refused))
	fmt.Println(io.EOF, httpretry.Classify(req, nil, io.EOF))
	// Output:
	// 200 final
	// 404 final
	// 425 unprocessed
	// 429 transient
	// 503 transient
	// dial: connection refused unprocessed
	// EOF transient
}

func ExampleIdempotent() {
	get := httptest.NewRequest(http.MethodGet, "http://api.example.com/", nil)
	fmt.Println("GET:", httpretry.Idempotent(get))

	post := httptest.NewRequest(http.MethodPost, "http://api.example.com/", nil)
	fmt.Println("POST:", httpretry.Idempotent(post))
	post.Header.Set("Idempotency-Key", "order-17")
	fmt.Println("POST with a key:", httpretry.Idempotent(post))
	// Output:
	// GET: true
	// POST: false
	// POST with a key: true
}

func ExampleOrigin() {
	for _, text := range []string{"https://API.example.com/v1?q", "http://127.0.0.1:8080/"} {
		u, err := url.Parse(text)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(httpretry.Origin(u))
	}
	// Output:
	// https://api.example.com
	// http://127.0.0.1:8080
}

// Several transports can share a HostBudget. A host that is down gets two
// failed retries from both of them together.
func ExampleHostBudget() {
	down := unreliable(1000)
	defer down.Close()
	budget := &httpretry.HostBudget{Burst: 2}
	config := httpretry.Config{Policy: httpretry.Policy{
		MaxAttempts: -1, Budget: budget, Backoff: strategies.Constant{}}}

	for range 2 {
		transport, err := httpretry.New(config)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp, err := (&http.Client{Transport: transport}).Get(down.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(httpretry.ResultOf(resp))
		retries, _ := budget.Balance(httpretry.Origin(resp.Request.URL))
		fmt.Println("retries left:", retries)
		_ = resp.Body.Close()
	}
	// Output:
	// {3 budget_exhausted false}
	// retries left: 0
	// {1 budget_exhausted false}
	// retries left: 0
}

// Without a budget, MaxAttempts alone limits the load on a host that is down.
func ExampleUnlimited() {
	down := unreliable(1000)
	defer down.Close()
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		MaxAttempts: 10, Budget: httpretry.Unlimited{}, Backoff: strategies.Constant{}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := (&http.Client{Transport: transport}).Get(down.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(httpretry.ResultOf(resp))
	// Output:
	// {10 attempts_exhausted false}
}

// switched is a budget that allows no retries while it is off.
type switched struct {
	httpretry.HostBudget
	off atomic.Bool
}

func (s *switched) Withdraw(ctx context.Context, last httpretry.AttemptResult) bool {
	return !s.off.Load() && s.HostBudget.Withdraw(ctx, last)
}

// A budget can contain another one, here so that an operator can turn off all
// retries.
func ExampleBudget() {
	down := unreliable(1000)
	defer down.Close()
	budget := new(switched)
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		Budget: budget, Backoff: strategies.Constant{}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	for _, off := range []bool{false, true} {
		budget.off.Store(off)
		resp, err := client.Get(down.URL)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(httpretry.ResultOf(resp))
		_ = resp.Body.Close()
	}
	// Output:
	// {3 attempts_exhausted false}
	// {1 budget_exhausted false}
}

// The server limits each user. With a CooldownKey, the limit of one does not
// delay the requests of another.
func ExampleCooldown() {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if user, _, _ := r.BasicAuth(); user == "ann" {
			w.Header().Set("Retry-After", "120")
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	defer srv.Close()
	transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
		Cooldown:    httpretry.CooldownFail,
		CooldownKey: func(r *http.Request) string { return r.Header.Get("Authorization") },
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}

	for _, user := range []string{"ann", "ann", "bob"} {
		req, err := http.NewRequest(http.MethodGet, srv.URL, nil)
		if err != nil {
			fmt.Println(err)
			return
		}
		req.SetBasicAuth(user, "secret")
		resp, err := client.Do(req)
		if _, ok := errors.AsType[*httpretry.CooldownError](err); ok {
			fmt.Println(user, "has to wait")
			continue
		} else if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(user, resp.Status)
		_ = resp.Body.Close()
	}
	// Output:
	// ann 429 Too Many Requests
	// ann has to wait
	// bob 200 OK
}
