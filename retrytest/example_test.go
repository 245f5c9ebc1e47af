package retrytest_test

import (
	"fmt"
	"net/http"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

// An exampleT stands for the *testing.T of a test, which an Example lacks.
type exampleT struct{ cleanup func() }

func (*exampleT) Helper()                           {}
func (*exampleT) Errorf(format string, args ...any) { fmt.Printf("FAIL: "+format+"\n", args...) }
func (t *exampleT) Cleanup(f func())                { t.cleanup = f }

// get is code under test. It prints the result of a GET.
func get(base http.RoundTripper) {
	transport, err := httpretry.New(httpretry.Config{
		Base:   base,
		Policy: httpretry.Policy{Backoff: strategies.Constant{}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	resp, err := (&http.Client{Transport: transport}).Get("http://api.example.com/")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.Status)
}

// The script has the answers to three attempts. In a test, t is its *testing.T,
// and the waits take no time with testing/synctest.
func ExampleBase() {
	t := new(exampleT)
	base := retrytest.Base(t,
		retrytest.Status(503),
		retrytest.Reset(),
		retrytest.Status(200),
	)
	get(base)
	for _, sent := range base.Attempts() {
		fmt.Println(sent.Attempt, sent.Method, sent.URL)
	}
	t.cleanup() // as at the end of a test
	// Output:
	// 200 OK
	// 1 GET http://api.example.com/
	// 2 GET http://api.example.com/
	// 3 GET http://api.example.com/
}

// A test fails if a request is sent that has no step, or if a step is left.
func ExampleScript() {
	t := new(exampleT)
	get(retrytest.Base(t, retrytest.Status(503)))

	base := retrytest.Base(t, retrytest.Status(404), retrytest.Status(200))
	get(base)
	t.cleanup()
	// Output:
	// FAIL: retrytest: request 2, GET http://api.example.com/, has no step
	// Get "http://api.example.com/": httpretry: gave up after 2 attempts (permanent): retrytest: request 2, GET http://api.example.com/, has no step
	// 404 Not Found
	// FAIL: retrytest: 1 of 2 steps were not played
}

// A Step can have a header and a body.
func ExampleStep() {
	get(retrytest.Base(new(exampleT),
		retrytest.Step{Status: 400, Header: http.Header{"X-Should-Retry": {"true"}}, Body: "{}"},
		retrytest.Step{}, // 200
	))
	// Output:
	// 200 OK
}

// The answer of a function can depend on the request. Always plays it for all
// requests.
func ExampleFunc() {
	answer := retrytest.Func(func(req *http.Request) (*http.Response, error) {
		if httpretry.Attempt(req.Context()) < 3 {
			return &http.Response{StatusCode: 503}, nil
		}
		return &http.Response{StatusCode: 200, Status: "200 for attempt 3"}, nil
	})
	get(retrytest.Base(new(exampleT), retrytest.Always(answer)))
	// Output:
	// 200 for attempt 3
}
