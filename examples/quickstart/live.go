package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
)

// runLive sends requests to a real server.
func runLive(ctx context.Context, opts options, out *screen, counts *counters) error {
	transport, err := httpretry.New(httpretry.Config{
		Policy: httpretry.Policy{
			MaxAttempts:    opts.attempts,
			Backoff:        opts.backoff,
			AttemptTimeout: opts.timeout,
			Budget:         opts.budget,
		},
		Observe: httpretry.Observers(counts.observe, out.observe),
	})
	if err != nil {
		return err
	}
	client := &http.Client{
		Transport: transport,
		// A redirect would be another request, beyond -n.
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	defer client.CloseIdleConnections()

	out.print("%s, %v per second: %s %s\n\n",
		count(opts.n, "request"), opts.rate, opts.method, printable(opts.url))
	out.heading()
	sendAll(ctx, client, opts)
	out.hints(counts)
	if n := counts.successes(); n < opts.n {
		return fmt.Errorf("%d of %d requests did not succeed", opts.n-n, opts.n)
	}
	return nil
}

// sendAll starts the requests at the rate of -rate, whether or not the ones
// before have ended, and waits for all of them.
func sendAll(ctx context.Context, client *http.Client, opts options) {
	var wg sync.WaitGroup
	defer wg.Wait()
	pace := time.NewTicker(time.Duration(float64(time.Second) / opts.rate))
	defer pace.Stop()
	for i := range opts.n {
		if i > 0 {
			select {
			case <-pace.C:
			case <-ctx.Done():
			}
		}
		if ctx.Err() != nil {
			return
		}
		wg.Go(func() {
			// The observer prints and counts the results. Another program would
			// use them here.
			_, _ = send(withLabel(ctx, fmt.Sprintf("#%d", i+1)),
				client, opts.method, opts.url, nil)
		})
	}
}

// send sends a request and returns the status of its response.
func send(
	ctx context.Context, client *http.Client, method, target string, header http.Header,
) (int, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return 0, err
	}
	if header != nil {
		req.Header = header
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	// A body that is read to its end leaves its connection to the next request.
	// A longer body than this is not worth it.
	_, _ = io.CopyN(io.Discard, resp.Body, 1<<20)
	return resp.StatusCode, nil
}

// printable returns a URL without its user and query, which may be secrets.
func printable(target string) string {
	u, err := url.Parse(target)
	if err != nil {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path}).String()
}
