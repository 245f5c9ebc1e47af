// Package growth tells whether what a process holds, or the time that its
// requests take, grows while it runs. It needs Linux.
package growth

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

// SamplesPerRun is ten for each quarter of a run.
const SamplesPerRun = 40

// From is the shortest run whose growth can be judged. The pools and tables of
// shorter ones still fill.
const From = 30 * time.Second

// A Series is a quantity that must not grow, with its samples. It may grow by
// its variation and by Slack.
type Series struct {
	Name, Unit string
	Slack      float64
	Samples    []float64
}

// Add adds a sample.
func (s *Series) Add(sample float64) { s.Samples = append(s.Samples, sample) }

// String returns the last sample.
func (s *Series) String() string {
	return fmt.Sprintf("%s %.0f%s", s.Name, s.Samples[len(s.Samples)-1], s.Unit)
}

// Resources are the series of what this process holds. The load itself may cause
// their slack, with a dozen requests that wait and their connections, or the
// buffers of a few large bodies.
type Resources struct{ Goroutines, Descriptors, Heap, RSS Series }

// NewResources returns Resources without a sample.
func NewResources() *Resources {
	return &Resources{
		Goroutines:  Series{Name: "goroutines", Slack: 12},
		Descriptors: Series{Name: "descriptors", Slack: 12},
		Heap:        Series{Name: "heap after GC", Unit: " KiB", Slack: 1 << 10},
		RSS:         Series{Name: "RSS", Unit: " KiB", Slack: 6 << 10},
	}
}

// All returns the series.
func (r *Resources) All() []*Series {
	return []*Series{&r.Goroutines, &r.Descriptors, &r.Heap, &r.RSS}
}

// Sample adds a sample to each series. It collects garbage and gives free memory
// back to the system first, so that neither the heap nor the RSS depends on when
// that happened last.
func (r *Resources) Sample() error {
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return fmt.Errorf("the RSS: %w", err)
	}
	fields := bytes.Fields(statm)
	if len(fields) < 2 {
		return fmt.Errorf("/proc/self/statm is %q", statm)
	}
	pages, err := strconv.ParseFloat(string(fields[1]), 64)
	if err != nil {
		return fmt.Errorf("/proc/self/statm: %w", err)
	}
	now := Held()
	r.Goroutines.Add(float64(now.goroutines))
	r.Descriptors.Add(float64(now.descriptors))
	r.Heap.Add(float64(m.HeapAlloc) / 1024)
	r.RSS.Add(pages * float64(os.Getpagesize()) / 1024)
	return nil
}

// A Verdict is the growth of a series from the second quarter of a run to the
// last. The first quarter is a warm-up, in which connections are made and pools
// and tables fill.
type Verdict struct {
	*Series
	second, last, most float64 // medians, and the largest last one that is flat
}

// Flat reports whether the series has not grown.
func (v Verdict) Flat() bool { return v.last <= v.most }

func (v Verdict) String() string {
	word := "flat"
	if !v.Flat() {
		word = "GROWS"
	}
	return fmt.Sprintf("%s: %s. Medians: %.0f%s in the second quarter, %.0f%s in the last, of at most %.0f%s",
		v.Name, word, v.second, v.Unit, v.last, v.Unit, v.most, v.Unit)
}

// Judge compares the medians of the second and the last quarter. The last may
// be larger by the slack and by the interquartile range of the second one. For
// values without a trend, the medians of ten differ by that range alone in less
// than one case of twenty, and the slack makes this rare. For a constant leak,
// they differ by four times that range, because the quarters are twenty samples
// apart, and the quartiles are five.
func (s *Series) Judge() Verdict {
	quarter := len(s.Samples) / 4
	second := slices.Sorted(slices.Values(s.Samples[quarter : 2*quarter]))
	last := slices.Sorted(slices.Values(s.Samples[len(s.Samples)-quarter:]))
	variation := second[3*quarter/4] - second[quarter/4]
	return Verdict{s, second[quarter/2], last[quarter/2], second[quarter/2] + variation + s.Slack}
}

// Holds counts what must not be more at the end than before.
type Holds struct{ goroutines, descriptors int }

// Held counts what this process holds now.
func Held() Holds {
	descriptors, _ := os.ReadDir("/proc/self/fd") // includes that of the directory, each time
	return Holds{runtime.NumGoroutine(), len(descriptors)}
}

// AwaitNone waits until nothing is held that was not before. It returns an error
// with the stacks of all goroutines if that takes ten seconds.
func (before Holds) AwaitNone(w io.Writer) error {
	var now Holds
	for range 500 {
		now = Held()
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
