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
	"os"
	"os/signal"
	"syscall"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130 // what shells report of a program that Ctrl-C ended
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first Ctrl-C ends in order, a second one at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: main without what a test cannot have twice. It returns
// the exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	opts, err := parseFlags(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, helpText)
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\nRun quickstart -h for help.\n", err)
		return exitUsage
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
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\n", err)
		return exitFailed
	}
	return exitOK
}

var errInterrupted = errors.New("interrupted")
