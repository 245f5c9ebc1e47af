// Download fetches a file over a link that breaks every few MiB, without
// [httpretry.Policy.Resume] and with it, and prints the results. The server and
// the link are on this machine, so it needs no network:
//
//	go run ./examples/download
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

// policy resumes downloads that break off. The budget is that of a program
// which has no other requests to the host.
func policy() httpretry.Policy {
	return httpretry.Policy{
		Resume:      true,
		ResumeIdle:  30 * time.Second,
		MaxAttempts: 5,
		Backoff:     strategies.DecorrelatedV2{Median: 100 * time.Millisecond},
	}
}

// run fetches the same file without Resume and with it.
func run(out io.Writer) error {
	link := startLink()
	defer link.Close()
	fmt.Fprintf(out, "A file of %s, over a link that breaks every 3 to 9 MiB.\n", mib(fileSize))

	p := policy()
	p.Resume, p.ResumeIdle = false, 0
	fmt.Fprintln(out, "\nWithout Resume:")
	if err := fetch(out, p, link.URL, io.Discard); err == nil {
		return errors.New("the link did not break")
	}

	fmt.Fprintln(out, "\nWith Resume:")
	sum := sha256.New()
	link.sent.Store(0)
	if err := fetch(out, policy(), link.URL, sum); err != nil {
		return err
	}
	if link.sum != [sha256.Size]byte(sum.Sum(nil)) {
		return errors.New("the file differs from that of the server")
	}
	fmt.Fprintf(out, "  SHA-256 is equal; the link transferred %.2f times the size\n",
		float64(link.sent.Load())/fileSize)
	return nil
}

// fetch writes the content of a URL to w, and prints the result.
func fetch(out io.Writer, p httpretry.Policy, url string, w io.Writer) error {
	transport, err := httpretry.New(httpretry.Config{Policy: p, Observe: printTo(out)})
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	// A body that net/http unpacks cannot be resumed.
	req.Header.Set("Accept-Encoding", "identity")
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the server answers %s", resp.Status)
	}
	written, err := io.Copy(w, resp.Body)
	attempts := httpretry.ResultOf(resp).Attempts
	if err != nil {
		fmt.Fprintf(out, "  failed after %s, on attempt %d: %v\n", mib(written), attempts, err)
		return err
	}
	fmt.Fprintf(out, "  complete: %s, requests: %d\n", mib(written), attempts)
	return nil
}

// printTo returns a Config.Observe that prints where a download breaks off.
func printTo(out io.Writer) func(context.Context, httpretry.Event) {
	return func(_ context.Context, e httpretry.Event) {
		if e.Reason != httpretry.ReasonNone {
			return
		}
		what := e.Status()
		if e.Err != nil {
			what = e.Err.Error()
		}
		if e.Resuming {
			what = fmt.Sprintf("broke off after %s: %s", mib(e.Offset), what)
		}
		fmt.Fprintf(out, "  %s; next request in %v\n", what, e.Wait.Round(time.Millisecond))
	}
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
