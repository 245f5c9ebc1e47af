// Restart measures how many requests a client loses while its server restarts.
//
//	go run ./restart -down=1s,3s -clients=5
//
// The server is a net/http server that is shut down and started again. Requests
// go to the server itself, whose port then refuses connections, or through a
// proxy: one that answers 503, or one that resets connections. Each client is a RetryTransport
// that sends requests at random times. All restarts happen at the same time.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func main() {
	downs := flag.String("down", "1s,3s", "`lengths` of the restart, separated by commas")
	up := flag.Duration("up", 40*time.Second, "time from the first request until the restart")
	clients := flag.Int("clients", 5, "clients of each row")
	rate := flag.Float64("rate", 20, "requests per second of each client")
	flag.Parse()
	var all []*trial
	for text := range strings.SplitSeq(*downs, ",") {
		down, err := time.ParseDuration(text)
		check(err)
		for _, kind := range []string{"refused", "503", "reset"} {
			all = append(all, &trial{kind: kind, down: down, up: *up, rate: *rate, clients: *clients})
		}
	}
	var wg sync.WaitGroup
	for _, t := range all {
		wg.Go(t.run)
	}
	wg.Wait()
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "kind\tdown\tclient\tbegun\tfailed\tworst\tsends")
	for _, t := range all {
		t.print(w)
	}
	check(w.Flush())
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "restart:", err)
		os.Exit(1)
	}
}

// A trial is one restart of one server, with clients of two policies.
type trial struct {
	kind    string
	down    time.Duration
	up      time.Duration
	rate    float64
	clients int

	begin, end time.Time // of the restart
	results    map[string][]*result
}

// policies are the default, and the waits of go-retryablehttp, which has no
// budget, with as many attempts.
var policies = []struct {
	name   string
	policy httpretry.Policy
}{
	{"the default", httpretry.Policy{}},
	{"go-retryablehttp", httpretry.Policy{
		Budget: httpretry.Unlimited{}, Backoff: strategies.Exponential{Base: time.Second},
	}},
}

// run measures the trial.
func (t *trial) run() {
	server, stop := serve("127.0.0.1:0", http.HandlerFunc(well))
	addr, stopProxy := server, func() {}
	switch t.kind {
	case "503":
		addr, stopProxy = serve("127.0.0.1:0", unavailable(server))
	case "reset":
		addr, stopProxy = resetting(server)
	}
	defer stopProxy()
	ctx, cancel := context.WithCancel(context.Background())
	wait := t.send(ctx, "http://"+addr+"/")
	time.Sleep(t.up)
	t.begin = time.Now()
	stop()
	time.Sleep(time.Until(t.begin.Add(t.down)))
	_, stop = serve(server, http.HandlerFunc(well))
	t.end = time.Now()
	cancel() // no more requests
	wait()
	stop()
}

// send starts the clients. They send requests until ctx is done. The function
// that it returns waits for the last answer.
func (t *trial) send(ctx context.Context, url string) (wait func()) {
	var wg sync.WaitGroup
	t.results = map[string][]*result{}
	for _, p := range policies {
		for range t.clients {
			r := new(result)
			t.results[p.name] = append(t.results[p.name], r)
			transport, err := httpretry.New(httpretry.Config{Policy: p.policy, Observe: r.observe})
			check(err)
			wg.Go(func() {
				defer transport.CloseIdleConnections()
				var requests sync.WaitGroup
				for ctx.Err() == nil {
					time.Sleep(time.Duration(rand.ExpFloat64() / t.rate * float64(time.Second)))
					requests.Go(func() { r.request(transport, url) })
				}
				requests.Wait()
			})
		}
	}
	return wg.Wait
}

// A result is the attempts and requests of one client.
type result struct {
	mu       sync.Mutex
	attempts []time.Time
	requests []request
}

type request struct {
	begun time.Time
	ok    bool
}

func (r *result) observe(context.Context, httpretry.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.attempts = append(r.attempts, time.Now())
}

func (r *result) request(transport http.RoundTripper, url string) {
	begun := time.Now()
	resp, err := (&http.Client{Transport: transport}).Get(url)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body) // so that the connection is used again
		_ = resp.Body.Close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests = append(r.requests, request{begun, err == nil && resp.StatusCode == http.StatusOK})
}

func (t *trial) print(w *tabwriter.Writer) {
	within := func(at time.Time) bool { return at.After(t.begin) && at.Before(t.end) }
	for _, p := range policies {
		begun, failed, worst, attempts, others := 0, 0, 0, 0, 0
		for _, r := range t.results[p.name] {
			before := failed
			for _, request := range r.requests {
				switch {
				case within(request.begun):
					begun++
					if !request.ok {
						failed++
					}
				case !request.ok:
					others++
				}
			}
			worst = max(worst, failed-before)
			for _, at := range r.attempts {
				if within(at) {
					attempts++
				}
			}
		}
		n := float64(t.clients)
		fmt.Fprintf(w, "%s\t%.2fs\t%s\t%.1f\t%.1f\t%d\t%.2f\n", t.kind, t.end.Sub(t.begin).Seconds(), p.name,
			float64(begun)/n, float64(failed)/n, worst, float64(attempts)/float64(begun))
		if others > 0 {
			fmt.Fprintf(w, "\t\t\toutside of the restart: %d failed\n", others)
		}
	}
}
