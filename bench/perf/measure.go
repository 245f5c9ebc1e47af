package main

import (
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"
)

// contestant is a client that takes part in a measurement.
type contestant struct {
	send     func(n int)     // sends n requests
	check    func() []string // their problems
	perRun   int             // requests in one window
	samples  []sample
	problems []string // found by check
}

// sample is the cost of one request, on average of a window.
type sample struct{ cpu, wall, allocs, bytes float64 } // cpu and wall in ns

func allocsOf(s sample) float64 { return s.allocs }
func bytesOf(s sample) float64  { return s.bytes }

// measure runs a window of about the given length of each contestant in each of
// several rounds, in an order that it shuffles, and then the checks.
func measure(contestants []*contestant, rounds int, length time.Duration, rng *rand.Rand) {
	for _, c := range contestants {
		c.calibrate(length)
	}
	order := append([]*contestant(nil), contestants...)
	for range rounds {
		rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		for _, c := range order {
			c.samples = append(c.samples, c.window())
		}
	}
	for _, c := range contestants {
		c.problems = append(c.problems, c.check()...)
	}
}

// withoutCollections calls f without the garbage collector. It would run in some
// windows and not in others, and its cost depends on the rest of a program. So
// allocations have a column instead.
func withoutCollections(f func()) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	f()
}

// calibrate sets perRun so that a window takes about the given time. It is a
// warm-up as well.
func (c *contestant) calibrate(length time.Duration) {
	c.perRun = max(c.perRun, 1)
	for {
		// One window may be slow by chance, and few requests are by nature.
		each := c.window().wall
		for range 4 {
			each = min(each, c.window().wall)
		}
		if wanted := int(float64(length) / each); wanted < 2*c.perRun {
			c.perRun = max(wanted, 1)
			return
		}
		c.perRun *= 2
	}
}

// window measures c.perRun requests.
func (c *contestant) window() sample {
	var before, after runtime.MemStats
	// Where the collector is off, it runs here.
	if runtime.ReadMemStats(&before); before.HeapAlloc > 64<<20 {
		runtime.GC()
	}
	// The contestant before has used the CPU's caches.
	c.send(max(c.perRun/8, 1))
	runtime.ReadMemStats(&before)
	cpu, start := cpuTime(), time.Now()
	c.send(c.perRun)
	wall, used := time.Since(start), cpuTime()-cpu
	runtime.ReadMemStats(&after)
	n := float64(c.perRun)
	return sample{
		cpu:    float64(used) / n,
		wall:   float64(wall) / n,
		allocs: float64(after.Mallocs-before.Mallocs) / n,
		bytes:  float64(after.TotalAlloc-before.TotalAlloc) / n,
	}
}

// cpuTime returns the CPU time of this process, in which the garbage collector
// is contained.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // it fails only for wrong arguments
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
