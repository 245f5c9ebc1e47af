package httpretry_test

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"golang.org/x/time/rate"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// limited waits for its limiter before it sends a request.
type limited struct {
	next    http.RoundTripper
	limiter *rate.Limiter
}

func (l limited) RoundTrip(req *http.Request) (*http.Response, error) {
	if err := l.limiter.Wait(req.Context()); err != nil {
		if req.Body != nil {
			req.Body.Close()
		}
		// Nothing was sent, so any request may be retried.
		return nil, httpretry.WithOutcome(err, httpretry.Unprocessed)
	}
	return l.next.RoundTrip(req)
}

// A limiter below the RetryTransport counts each attempt. Above it, a limiter
// would count requests, however many retries they have.
func Example_rateLimiter() {
	srv := unreliable(2)
	defer srv.Close()
	transport, err := httpretry.New(httpretry.Config{
		Base:   limited{http.DefaultTransport, rate.NewLimiter(rate.Every(20*time.Millisecond), 1)},
		Policy: httpretry.Policy{Backoff: strategies.Constant{}}, // no wait
	})
	if err != nil {
		log.Fatal(err)
	}
	client := &http.Client{Transport: transport}
	begin := time.Now()
	show(client.Get(srv.URL))
	fmt.Println("took at least 40 ms:", time.Since(begin) >= 40*time.Millisecond)

	// Output:
	// 200 GET after 2 retries
	// took at least 40 ms: true
}
