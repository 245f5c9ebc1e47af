// Quickstart shows, line by line as it happens, what httpretry does with
// requests that fail.
//
// By itself it starts a server on this machine that fails in a dozen ways,
// sends requests through an [http.Client] with a RetryTransport, and checks
// by the server's own count that each scenario did what its title says. It
// needs no network and takes about six seconds:
//
//	go run ./examples/quickstart
//
// With -url the same client sends its requests to a real server:
//
//	go run ./examples/quickstart -url https://example.com/ -n 20 -rate 5
//
// The scenarios are in scenarios.go; live.go is the shortest complete use of
// the library.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/seed421102f4/httpretry/examples/internal/frame"
)

func main() { frame.Main(run) }

// run is the program: main without what a test cannot have twice. It returns
// the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parseFlags(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, helpText)
		return frame.OK
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\nRun quickstart -h for help.\n", err)
		return frame.Usage
	}

	out, counts := newScreen(stdout), new(counters)
	mode := runDemo
	if opts.url != "" {
		mode = runLive
	}
	err = mode(ctx, opts, out, counts)
	if ctx.Err() != nil {
		err = errInterrupted
		out.print("\nInterrupted.\n")
	}
	out.summary(counts)

	switch {
	case errors.Is(err, errInterrupted):
		return frame.Interrupted
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\n", err)
		return frame.Failed
	}
	return frame.OK
}

var errInterrupted = errors.New("interrupted")
