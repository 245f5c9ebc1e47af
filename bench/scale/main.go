// Scale measures httpretry at scale: many concurrent clients, many requests
// that wait for a retry, many hosts, patterns and goroutines.
//
//	go run ./scale -svg ../docs/figures/scale.svg
//
// It prints tables in Markdown, and draws the curves of the growth. A cell with
// a range is the median of the windows and their quartiles. The windows of the
// figures compared alternate. With -quick it measures less, in less than half a
// minute.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/seed421102f4/httpretry/bench/internal/child"
	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

// A plan is a list of measurements.
type plan struct {
	clients    []int
	loadRounds int
	loadWindow time.Duration

	waiting int // requests

	hosts, patterns, goroutines []int
	growthRounds                int
	growthWindow                time.Duration
}

var full = plan{
	clients:      []int{64, 512, 4096},
	loadRounds:   7,
	loadWindow:   900 * time.Millisecond,
	waiting:      20_000,
	hosts:        []int{1, 10, 100, 1000, 2000, 10_000, 100_000},
	patterns:     []int{1, 10, 100, 1000},
	goroutines:   []int{1, 2, 4, 8, 16, 32, 64},
	growthRounds: 41,
	growthWindow: 25 * time.Millisecond,
}

var quick = plan{
	clients:      []int{64, 512},
	loadRounds:   3,
	loadWindow:   100 * time.Millisecond,
	waiting:      2000,
	hosts:        []int{1, 100, 10_000},
	patterns:     []int{1, 1000},
	goroutines:   []int{1, 8, 64},
	growthRounds: 5,
	growthWindow: 20 * time.Millisecond,
}

func main() {
	child.ServeIfStarted(newHandler)
	quickly := flag.Bool("quick", false, "measure less, in less than half a minute")
	file := flag.String("svg", "", "draw the curves of the growth in this `file`")
	flag.Parse()
	var err error
	switch {
	case flag.NArg() > 0:
		err = fmt.Errorf("%q: want flags only", flag.Arg(0))
	case *quickly:
		err = run(os.Stdout, quick, *file)
	default:
		err = run(os.Stdout, full, *file)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// run makes the measurements of p, and draws the curves in a file if it has a
// name.
func run(w io.Writer, p plan, file string) (err error) {
	server, err := child.Start()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	describeMachine(w)

	curves, err := measureGrowth(p)
	if err != nil {
		return err
	}
	for _, c := range curves {
		writeCurve(w, c)
	}
	for _, path := range []string{"/ok", "/flaky"} {
		var rows []loadRow
		for _, n := range p.clients {
			some, err := measureLoad(p, server.URL, path, n)
			if err != nil {
				return err
			}
			rows = append(rows, some...)
		}
		writeLoad(w, path, rows)
	}
	all := withoutLibraries()
	waiting, err := measureWaiting(server.URL, p.waiting, []peers.Peer{all[0], all[2]})
	if err != nil {
		return err
	}
	writeWaiting(w, waiting)
	if file == "" {
		return nil
	}
	svg, err := draw(curves)
	if err != nil {
		return err
	}
	return os.WriteFile(file, svg, 0o644)
}
