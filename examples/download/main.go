// Download fetches a file over a link that breaks every few MiB, without
// [httpretry.Policy.Resume] and with it, and prints the results:
//
//	go run ./examples/download
//
// The server and the link are on this machine, so it needs no network. It
// fetches a file of yours, with Resume, if there is a URL:
//
//	go run ./examples/download -url https://example.com/file.iso -o file.iso
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/internal/frame"
	"github.com/seed421102f4/httpretry/strategies"
)

const helpText = `Download fetches a file over a link that breaks every few MiB.

Usage:
  download                    a demonstration; needs no network
  download -url URL [-o FILE] a file of yours; without -o, it is discarded

Exit status:
  0     the file is complete
  1     it is not
  2     the arguments are wrong
  130   interrupted by Ctrl-C (SIGINT) or SIGTERM
`

func main() { frame.Main(run) }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var url, file string
	return frame.Program{
		Name: "download",
		Help: helpText,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&url, "url", "", "")
			fs.StringVar(&file, "o", "", "")
		},
		Check: func() error {
			if file != "" && url == "" {
				return fmt.Errorf("-o %s: want a -url as well", file)
			}
			return nil
		},
		Show: func(ctx context.Context, stdout io.Writer) error {
			out := newScreen(stdout)
			if url == "" {
				return demonstrate(ctx, out)
			}
			return save(ctx, out, url, file)
		},
	}.Run(ctx, args, stdout, stderr)
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

// demonstrate fetches the same file without Resume and with it.
func demonstrate(ctx context.Context, out *screen) error {
	link, err := startLink()
	if err != nil {
		return err
	}
	defer link.stop()
	fmt.Fprintf(out, "A file of %s, over a link that breaks every 3 to 9 MiB.\n", mib(fileSize))

	p := policy()
	p.Resume = false
	fmt.Fprintln(out, "\nWithout Resume:")
	if err := fetch(ctx, out, p, link.url(), io.Discard); err == nil {
		return errors.New("the link did not break")
	}

	fmt.Fprintln(out, "\nWith Resume:")
	sum := sha256.New()
	link.received.Store(0)
	if err := fetch(ctx, out, policy(), link.url(), sum); err != nil {
		return err
	}
	if link.sum != [sha256.Size]byte(sum.Sum(nil)) {
		return errors.New("the file differs from that of the server")
	}
	fmt.Fprintf(out, "  SHA-256 is equal; the link transferred %.2f times the size\n",
		float64(link.received.Load())/fileSize)
	return nil
}

// save fetches a file of the user's. It has its name only once it is complete.
func save(ctx context.Context, out *screen, url, file string) error {
	if file == "" {
		return fetch(ctx, out, policy(), url, io.Discard)
	}
	part, err := os.Create(file + ".part")
	if err != nil {
		return err
	}
	err = fetch(ctx, out, policy(), url, part)
	if err = errors.Join(err, part.Close()); err != nil {
		return errors.Join(err, os.Remove(part.Name()))
	}
	return os.Rename(part.Name(), file)
}

// fetch writes the content of a URL to w, and prints the result.
func fetch(ctx context.Context, out *screen, p httpretry.Policy, url string, w io.Writer) error {
	transport, err := httpretry.New(httpretry.Config{Policy: p, Observe: out.observe})
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
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
	written, err := io.Copy(io.MultiWriter(w, out.bar(resp.ContentLength)), resp.Body)
	attempts, _ := httpretry.Result(resp)
	if err != nil {
		fmt.Fprintf(out, "  failed after %s, on attempt %d: %v\n", mib(written), attempts, err)
		return err
	}
	fmt.Fprintf(out, "  complete: %s, requests: %d\n", mib(written), attempts)
	return nil
}

func mib(n int64) string { return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20)) }
