package main

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestSummarize(t *testing.T) {
	for _, tt := range []struct {
		name   string
		values []float64
		want   spread
	}{
		{"one value", []float64{7}, spread{7, 7, 7}},
		{"two values", []float64{3, 1}, spread{1.5, 2, 2.5}},
		{"odd count", []float64{5, 1, 4, 2, 3}, spread{2, 3, 4}},
		{"even count", []float64{4, 1, 3, 2}, spread{1.75, 2.5, 3.25}},
		{"an outlier", []float64{1, 1, 1, 1, 1000}, spread{1, 1, 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before := append([]float64(nil), tt.values...)
			assert.Equal(t, tt.want, summarize(tt.values))
			assert.Equal(t, before, tt.values)
		})
	}
	assert.True(t, math.IsNaN(summarize(nil).median))
}

// a round's own reference is used, so a slow round does not count as a slow
// peer.
func TestPairwise(t *testing.T) {
	reference := []sample{{cpu: 100}, {cpu: 1000}, {cpu: 50}}
	peer := []sample{{cpu: 110}, {cpu: 1100}, {cpu: 55}}
	ratio := pairwise(peer, reference, func(a, b sample) float64 { return a.cpu / b.cpu })
	assert.InDeltaSlice(t, []float64{1.1, 1.1, 1.1}, ratio, 1e-9)
	added := pairwise(peer, reference, func(a, b sample) float64 { return a.cpu - b.cpu })
	assert.Equal(t, []float64{10, 100, 5}, added)
}

func TestFormat(t *testing.T) {
	for _, tt := range []struct {
		got, want string
	}{
		{formatTimes(spread{93, 107, 1180}), "107 (93 to 1,180) ns"},
		{formatTimes(spread{9_000, 12_340, 20_000}), "12.3 (9.0 to 20.0) µs"},
		{formatSize(0), "0 B"},
		{formatSize(1023), "1,023 B"},
		{formatSize(65536), "64.0 KiB"},
		{formatCount(-1234567), "-1,234,567"},
		{formatRatio(spread{0.81, 0.9, 1}), "0.90× (0.81 to 1.00)"},
		{formatRatio(spread{81, 90.4, 100}), "90× (81 to 100)"},
	} {
		assert.Equal(t, tt.want, tt.got)
	}
}
