// Package frame handles signals, arguments and exit codes for the example
// programs.
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
	Interrupted = 130 // the status that shells report after Ctrl-C
)

// RunFunc is a program without its signals. It returns the exit code.
type RunFunc func(ctx context.Context, args []string, stdout, stderr io.Writer) int

// Main runs a program and exits with the code that it returns. SIGINT and
// SIGTERM cancel the context of the program.
func Main(run RunFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// After the first Ctrl-C the program ends by itself, after a second one at
	// once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// Program is a program with flags and without other arguments.
type Program struct {
	Name  string
	Help  string                                            // printed by -h
	Flags func(fs *flag.FlagSet)                            // defines them; nil: only -h
	Check func() error                                      // checks them; may be nil
	Show  func(ctx context.Context, stdout io.Writer) error // runs the program
}

// Run runs the program and returns the exit code. It is a [RunFunc].
func (p Program) Run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet(p.Name, flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	want := "want no arguments"
	if p.Flags != nil {
		p.Flags(fs)
		want = "want flags only"
	}
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, p.Help)
		return OK
	case err == nil && fs.NArg() > 0:
		err = fmt.Errorf("%q: %s", fs.Arg(0), want)
	case err == nil && p.Check != nil:
		err = p.Check()
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
