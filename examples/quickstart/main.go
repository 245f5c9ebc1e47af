// Quickstart shows what httpretry does with requests that fail, one line for
// each attempt.
//
// Without flags it starts a server on this machine that fails in several ways,
// sends requests through an [http.Client] with a RetryTransport, and compares
// the numbers of client and server with those that each scenario promises. It
// needs no network and takes about six seconds:
//
//	go run ./examples/quickstart
//
// With -url the same client sends requests to your server. Then it also prints
// why requests that failed were not retried, and how to allow it:
//
//	go run ./examples/quickstart -url https://example.com/ -n 20 -rate 5
//
// The scenarios are in scenarios.go. live.go shows how to use the library, as
// does examples/basic.
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

// run runs the program and returns the exit code. It is a [frame.RunFunc].
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
