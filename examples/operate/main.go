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
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/retrydebug"
)

func main() {
	file := flag.String("file", "policies.json", "`name` of the file with the policies")
	addr := flag.String("addr", "127.0.0.1:6061", "`address` of the debug page")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := operate(ctx, *file, *addr, &screen{out: os.Stdout}); err != nil {
		log.Fatal(err)
	}
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
