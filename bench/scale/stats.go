package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"syscall"
	"time"
)

// A summary is the median of some windows, and the quartiles around it.
type summary struct{ Median, Low, High float64 }

// summarize returns the summary of values, of which there must be one at least.
func summarize(values []float64) summary {
	sorted := slices.Sorted(slices.Values(values))
	return summary{quantile(sorted, 0.5), quantile(sorted, 0.25), quantile(sorted, 0.75)}
}

// quantile returns the value below which the fraction q of sorted lies. Between
// two values, it interpolates.
func quantile(sorted []float64, q float64) float64 {
	whole, part := math.Modf(q * float64(len(sorted)-1))
	i := int(whole)
	if part == 0 {
		return sorted[i]
	}
	return sorted[i] + part*(sorted[i+1]-sorted[i])
}

// String formats s as "1.23 (1.20–1.27)".
func (s summary) String() string {
	return fmt.Sprintf("%s (%s–%s)", number(s.Median), number(s.Low), number(s.High))
}

// number formats x with three significant digits.
func number(x float64) string {
	digits := 2
	for limit := 10.0; math.Abs(x) >= limit-0.5*math.Pow10(-digits) && digits > -9; limit *= 10 {
		digits--
	}
	if digits >= 0 {
		return strconv.FormatFloat(x, 'f', digits, 64)
	}
	unit := math.Pow10(-digits)
	return thousands(int(math.Round(x/unit) * unit))
}

// thousands formats n with a comma before every three digits.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// alternate calls each window once per round. The order is another one in each
// round, so that a machine that becomes slower slows all windows down.
func alternate(rounds int, windows []func() error) error {
	for range rounds {
		for _, i := range rand.Perm(len(windows)) {
			if err := windows[i](); err != nil {
				return err
			}
		}
	}
	return nil
}

// cpuTime returns the CPU time that this process has used.
func cpuTime() (time.Duration, error) {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		return 0, fmt.Errorf("getrusage: %w", err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), nil
}
