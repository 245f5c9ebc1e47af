// Operate is a program whose retry policies change while it runs. They are in
// policies.json. Its own server fails some of the requests, so that a change
// shows after a few seconds. A debug page shows the state of each host:
//
//	cd examples/operate
//	go run .
//
// The README in this folder changes the attempts, the timeout and the budget of
// one host. It needs no network.
package main

import (
	"context"
	"flag"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/internal/frame"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/retrydebug"
)

const helpText = `Operate sends requests with retry policies from a file, and follows the file
while it runs. It prints a line per second, until Ctrl-C.

Usage:
  operate [-file F] [-addr A]

Flags:
  -file F    the file with the policies (default policies.json)
  -addr A    the address of the debug page (default 127.0.0.1:6061)

Exit status:
  1     the file was not valid at the start, or the address is in use
  2     the flags are wrong
  130   interrupted by Ctrl-C (SIGINT) or SIGTERM
`

func main() { frame.Main(run) }

// run runs the program and returns the exit code. It is a [frame.RunFunc].
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var file, addr string
	return frame.Program{
		Name: "operate",
		Help: helpText,
		Flags: func(fs *flag.FlagSet) {
			fs.StringVar(&file, "file", "policies.json", "")
			fs.StringVar(&addr, "addr", "127.0.0.1:6061", "")
		},
		Show: func(ctx context.Context, stdout io.Writer) error {
			return operate(ctx, file, addr, &screen{out: stdout})
		},
	}.Run(ctx, args, stdout, stderr)
}

// operate sends requests, with the policies of the file, until ctx is done.
func operate(ctx context.Context, file, addr string, out *screen) error {
	hosts, err := serve("127.0.0.1:0", http.HandlerFunc(flaky))
	if err != nil {
		return err
	}
	defer hosts.stop()
	load := newLoad()
	transport, err := httpretry.New(httpretry.Config{
		Base:    hosts.transport(),
		Observe: load.observe,
	})
	if err != nil {
		return err
	}
	defer transport.CloseIdleConnections()

	// A program must not start with policies that are not valid. From then on,
	// an error changes nothing.
	started := false
	reloader := &policyfile.Reloader{Path: file, Transport: transport, Report: func(err error) {
		if started {
			out.reload(file, err)
		}
	}}
	if err := reloader.Reload(); err != nil {
		return err
	}
	started = true

	mux := http.NewServeMux()
	mux.Handle("/debug/httpretry", retrydebug.Handler(transport))
	page, err := serve(addr, mux)
	if err != nil {
		return err
	}
	defer page.stop()

	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { load.send(ctx, transport) })
	follow(ctx, &wg, reloader, page.addr, out)
	printLines(ctx, load, out)
	return nil
}

// follow starts to follow the file of reloader, until ctx is done.
func follow(
	ctx context.Context, wg *sync.WaitGroup, reloader *policyfile.Reloader, page string,
	out *screen,
) {
	hangup := make(chan os.Signal, 1)
	canReload := notifyHangup(hangup)
	out.begin(reloader.Path, page, canReload)
	wg.Go(func() { _ = reloader.Run(ctx) }) // it ends with ctx
	wg.Go(func() {
		defer stopHangup(hangup)
		reloadOn(ctx, hangup, reloader, out)
	})
}

// reloadOn looks at the file after each SIGHUP, and not only when Run does. The
// operator gets an answer in any case.
func reloadOn(
	ctx context.Context, hangup <-chan os.Signal, reloader *policyfile.Reloader, out *screen,
) {
	for {
		select {
		case <-hangup:
			before := out.reloads()
			if err := reloader.Reload(); out.reloads() == before {
				out.unchanged(reloader.Path, err)
			}
		case <-ctx.Done():
			return
		}
	}
}

// printLines prints a line per second.
func printLines(ctx context.Context, load *load, out *screen) {
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for {
		select {
		case <-second.C:
			out.line(load.take(tuned), load.take(other))
		case <-ctx.Done():
			return
		}
	}
}
