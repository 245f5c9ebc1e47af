package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
)

// report writes the counts of a run, and returns the problems. A problem is a
// request that arrived twice, a wrong body, a fault that did not occur, or a
// kind of request of which none succeeded.
func (l *load) report(w io.Writer, server stats) error {
	fmt.Fprintf(w, "%d requests of the clients, %d attempts that arrived, %d uploads that arrived whole\n",
		l.requests.Load(), server.Requests, server.Whole)
	fmt.Fprintf(w, "%d POSTs without a key that arrived, %d of them twice\n", server.Once, server.Twice)
	var problems []error
	fail := func(format string, args ...any) { problems = append(problems, fmt.Errorf(format, args...)) }
	if server.Twice > 0 {
		fail("%d of %d POSTs without a key arrived twice", server.Twice, server.Once)
	}
	if n := server.Wrong + l.wrong.Load(); n > 0 {
		fail("%d request bodies and %d response bodies were wrong", server.Wrong, l.wrong.Load())
	}
	for _, name := range slices.Sorted(maps.Keys(server.Faults)) {
		fmt.Fprintf(w, "fault %s: %d\n", name, server.Faults[name])
		if server.Faults[name] == 0 {
			fail("the fault did not occur: %s", name)
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	byName := func(a, b outcome) int { return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.result, b.result)) }
	for _, o := range slices.SortedFunc(maps.Keys(l.outcomes), byName) {
		fmt.Fprintf(w, "%s: %s: %d\n", o.kind, o.result, l.outcomes[o])
	}
	for _, k := range kinds() {
		// On a busy machine, many attempts may time out.
		if l.outcomes[outcome{k.name, succeeded}] == 0 {
			fail("%s: none succeeded", k.name)
		}
	}
	return errors.Join(problems...)
}
