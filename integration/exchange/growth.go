package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A sample has the resources that this process holds at one time.
type sample struct{ goroutines, heap, rss float64 } // heap and rss in bytes

// takeSample collects garbage and gives free memory back to the system first,
// so that neither the heap nor the RSS depends on when that happened last.
func takeSample() (sample, error) {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return sample{}, fmt.Errorf("the RSS: %w", err)
	}
	fields := bytes.Fields(statm)
	if len(fields) < 2 {
		return sample{}, fmt.Errorf("/proc/self/statm is %q", statm)
	}
	pages, err := strconv.ParseFloat(string(fields[1]), 64)
	if err != nil {
		return sample{}, fmt.Errorf("/proc/self/statm: %w", err)
	}
	return sample{float64(runtime.NumGoroutine()), float64(m.HeapAlloc), pages * float64(os.Getpagesize())}, nil
}

// A quantity is one of the numbers of a sample. It may grow by its variation
// and by slack.
type quantity struct {
	name, unit string
	of         func(sample) float64
	slack      float64
}

// quantities returns the quantities that must not grow. The load itself may
// cause the slack, with a dozen requests that wait, or the buffers of a few
// large bodies.
func quantities() []quantity {
	return []quantity{
		{"goroutines", "", func(s sample) float64 { return s.goroutines }, 12},
		{"heap after GC", " KiB", func(s sample) float64 { return s.heap / 1024 }, 1 << 10},
		{"RSS", " KiB", func(s sample) float64 { return s.rss / 1024 }, 6 << 10},
	}
}

// samplesPerRun is ten for each quarter.
const samplesPerRun = 40

// A verdict is the growth of a quantity from the second quarter of a run to the
// last. The first quarter is a warm-up, in which connections are made and pools
// and tables fill.
type verdict struct {
	quantity
	second, last, most float64 // medians, and the largest last one that is flat
}

func (v verdict) flat() bool { return v.last <= v.most }

func (v verdict) String() string {
	word := "flat"
	if !v.flat() {
		word = "GROWS"
	}
	return fmt.Sprintf("%s: %s. Medians: %.0f%s in the second quarter, %.0f%s in the last, of at most %.0f%s",
		v.name, word, v.second, v.unit, v.last, v.unit, v.most, v.unit)
}

// judge compares the medians of the second and the last quarter. The last may
// be larger by the slack and by the interquartile range of the second one. For
// values without a trend, the medians of ten differ by that range alone in less
// than one case of twenty, and the slack makes this rare. For a constant leak,
// they differ by four times that range, because the quarters are twenty samples
// apart, and the quartiles are five.
func judge(samples []sample) (all []verdict) {
	quarter := len(samples) / 4
	for _, q := range quantities() {
		second := q.sorted(samples[quarter : 2*quarter])
		last := q.sorted(samples[len(samples)-quarter:])
		variation := second[3*quarter/4] - second[quarter/4]
		all = append(all, verdict{q, second[quarter/2], last[quarter/2], second[quarter/2] + variation + q.slack})
	}
	return all
}

func (q quantity) sorted(samples []sample) []float64 {
	var values []float64
	for _, s := range samples {
		values = append(values, q.of(s))
	}
	slices.Sort(values)
	return values
}

// holds counts what must not be more at the end than before.
type holds struct{ goroutines, descriptors int }

func held() holds {
	descriptors, _ := os.ReadDir("/proc/self/fd") // includes that of the directory, each time
	return holds{runtime.NumGoroutine(), len(descriptors)}
}

// awaitNone waits until nothing is held that was not before. It returns an error
// with the stacks of all goroutines if that takes ten seconds.
func (before holds) awaitNone(w io.Writer) error {
	var now holds
	for range 500 {
		now = held()
		if now.goroutines <= before.goroutines && now.descriptors <= before.descriptors {
			fmt.Fprintf(w, "goroutines and descriptors: %v before, %v after\n", before, now)
			return nil
		}
		time.Sleep(20 * time.Millisecond)
	}
	var stacks strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1) // to memory
	return fmt.Errorf("goroutines and descriptors: %v before, %v after\n%s", before, now, stacks.String())
}
