package main

import (
	"math"
	"slices"
)

// spread is the median of some values, with their quartiles.
type spread struct{ low, median, high float64 }

// summarize returns the spread of values, which it does not modify. Without
// values, it is not a number.
func summarize(values []float64) spread {
	sorted := slices.Sorted(slices.Values(values))
	return spread{quantile(sorted, 0.25), quantile(sorted, 0.5), quantile(sorted, 0.75)}
}

// quantile returns the value below which the fraction q of sorted values lies.
// It interpolates between neighbors.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return math.NaN()
	}
	position := q * float64(len(sorted)-1)
	i := int(position)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (position-float64(i))*(sorted[i+1]-sorted[i])
}

// pairwise combines the samples of two contestants in each round.
func pairwise(a, b []sample, combine func(a, b sample) float64) []float64 {
	values := make([]float64, len(a))
	for i := range a {
		values[i] = combine(a[i], b[i])
	}
	return values
}
