// Package frame is what the example programs have around what they show:
// signals, arguments and exit codes.
package frame

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

// Exit codes of the programs.
const (
	OK          = 0
	Failed      = 1
	Usage       = 2
	Interrupted = 130 // what shells report of a program that Ctrl-C ended
)

// Main runs a program, which gets a context that SIGINT and SIGTERM end, and
// exits with the code that it returns.
func Main(run func(ctx context.Context, args []string, stdout, stderr io.Writer) int) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the first Ctrl-C ends in order, a second one at once
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Program is a program that takes no arguments but -h.
type Program struct {
	Name string
	Help string // what -h prints
	Show func(ctx context.Context, stdout io.Writer) error
}

// Run is the program: main without what a test cannot have twice. It returns
// the exit code.
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, p.Help)
		return OK
	case err == nil && fs.NArg() > 0:
		err = fmt.Errorf("%q: no arguments are allowed", fs.Arg(0))
	}
	if err != nil {
		fmt.Fprintf(stderr, "%s: %v\nRun %s -h for help.\n", p.Name, err, p.Name)
		return Usage
	}

	err = p.Show(ctx, stdout)
	switch {
	case ctx.Err() != nil:
		fmt.Fprintln(stdout, "Interrupted.")
		return Interrupted
	case err != nil:
		fmt.Fprintf(stderr, "%s: %v\n", p.Name, err)
		return Failed
	}
	return OK
}
