package main

import (
	"fmt"
	"io"
	"runtime"
	"strings"
	"time"
)

// describeMachine writes the machine's properties that measurements depend on.
func describeMachine(w io.Writer) {
	fmt.Fprintf(w, "%s, %s, %s/%s, GOMAXPROCS %d. Both processes share the processors.\n",
		time.Now().UTC().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, runtime.GOMAXPROCS(0))
}

// writeTable writes a table in Markdown, with its columns aligned to the right.
func writeTable(w io.Writer, title string, header []string, rows [][]string) {
	fmt.Fprintf(w, "\n%s\n\n| %s |\n|%s\n", title, strings.Join(header, " | "), strings.Repeat(" ---: |", len(header)))
	for _, row := range rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | "))
	}
}

func writeCurve(w io.Writer, c curve) {
	var rows [][]string
	for _, p := range c.Points {
		rows = append(rows, []string{thousands(p.N), p.Nanos.String(), p.Growth.String(), number(p.Allocs)})
	}
	first := fmt.Sprintf("× that at %d", c.Points[0].N)
	writeTable(w, "Cost of a success by the number of "+c.Name+":",
		[]string{c.Name, "CPU ns per request, added to Base", first, "allocations"}, rows)
}

func writeLoad(w io.Writer, path string, rows []loadRow) {
	title := "Load, each request succeeds:"
	if path == "/flaky" {
		title = fmt.Sprintf("Load, 10 %% of attempts fail with 503, retries wait %v:", retryWait)
	}
	var cells [][]string
	for _, r := range rows {
		cells = append(cells, []string{
			thousands(r.Clients), r.Name, r.Goodput.String(), r.Relative.String(), r.P50.String(), r.P99.String(),
			r.CPU.String(), r.RelativeCPU.String(), thousands(int(r.Connections)), thousands(int(r.Dialed)),
			fmt.Sprintf("%.3f", r.Attempts), fmt.Sprintf("%.1f %%", r.Succeeded),
		})
	}
	writeTable(w, title, []string{
		"clients", "with", "successes/s", "× http.Client", "p50 ms", "p99 ms",
		"CPU µs per attempt", "× http.Client", "connections", "dialed later", "attempts per call", "succeeded",
	}, cells)
}

func writeWaiting(w io.Writer, rows []waitingRow) {
	var cells [][]string
	for _, r := range rows {
		cells = append(cells, []string{
			r.Name, number(r.Heap), number(r.Stack), number(r.Heap + r.Stack), number(r.Goroutines), fmt.Sprint(r.Sockets),
		})
	}
	title := fmt.Sprintf("%s requests that wait for their retry:", thousands(rows[0].Requests))
	writeTable(w, title, []string{
		"with", "heap bytes per request", "stack bytes per request", "both", "goroutines per request", "sockets in all",
	}, cells)
}
