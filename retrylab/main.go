// Command retrylab shows the effects of a retry policy on a fleet of clients
// and on their server. The clients are RetryTransports of package httpretry, in
// virtual time. Run it without arguments for a list of its commands.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/seed421102f4/httpretry/retrylab/internal/report"
	"github.com/seed421102f4/httpretry/retrylab/internal/virtual"
)

func main() {
	virtual.Main(func(clock virtual.Clock) int {
		l := lab{clock: clock, stdout: os.Stdout, stderr: os.Stderr}
		return l.run(os.Args[1:])
	})
}

type lab struct {
	clock          virtual.Clock
	stdout, stderr io.Writer
}

type command struct {
	name, about string
	run         func(l lab, o *options) (report.Report, error)
}

func commands() []command {
	return []command{
		{"plot", "how strategies spread the retries of clients that fail at once", plot},
		{"contention", "calls and time that clients need to change one row", contend},
		{"outage", "a fleet and a server that fails for a while and recovers", simulateOutage},
		{"map", "which loads and triggers fleets come back from", mapRecoveries},
		{"restart", "what a restart of a host costs its clients", simulateRestart},
		{"layers", "retries in a chain of services", simulateLayers},
		{"policy", "the effects of a policy, before it is used", checkPolicy},
	}
}

func (l lab) run(args []string) int {
	if len(args) == 0 || slices.Contains([]string{"-h", "-help", "--help", "help"}, args[0]) {
		l.usage(l.stdout)
		return 0
	}
	if args[0] == "check" {
		return l.check(args[1:])
	}
	i := slices.IndexFunc(commands(), func(c command) bool { return c.name == args[0] })
	if i < 0 {
		fmt.Fprintf(l.stderr, "retrylab: %q: want plot, contention, outage, map, restart, layers, policy or check\n", args[0])
		return 2
	}
	if err := l.make(commands()[i], args[1:]); err != nil {
		fmt.Fprintf(l.stderr, "retrylab %s: %v\n", args[0], err)
		return 2
	}
	return 0
}

func (l lab) usage(w io.Writer) {
	fmt.Fprint(w, "retrylab shows what a retry policy does to a fleet, before the fleet does it.\n\n")
	for _, c := range commands() {
		fmt.Fprintf(w, "  retrylab %-10s  %s\n", c.name, c.about)
	}
	fmt.Fprintf(w, "  retrylab %-10s  %s\n", "check FILE", "the policies of files, where their values are from, and warnings")
	fmt.Fprintln(w, "\nEach of them but check shows something without flags. -h lists the flags.")
}

func (l lab) make(c command, args []string) error {
	o := newOptions(c.name, args)
	r, err := c.run(l, o)
	switch {
	case errors.Is(err, flag.ErrHelp):
		o.help(l.stdout, c.about)
		return nil
	case err != nil:
		return err
	}
	r.Command = o.commandLine()
	return o.write(l.stdout, r)
}
