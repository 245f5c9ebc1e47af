package main

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestSummarize(t *testing.T) {
	for _, test := range []struct {
		values []float64
		want   summary
	}{
		{[]float64{7}, summary{7, 7, 7}},
		{[]float64{3, 1}, summary{2, 1.5, 2.5}},
		{[]float64{5, 1, 4, 2, 3}, summary{3, 2, 4}},
		{[]float64{40, 10, 30, 20}, summary{25, 17.5, 32.5}},
	} {
		assert.Equal(t, test.want, summarize(test.values), "%v", test.values)
	}
	values := []float64{2, 1}
	summarize(values)
	assert.Equal(t, []float64{2, 1}, values, "the order of the rounds remains")
}

func TestQuantile(t *testing.T) {
	sorted := []float64{0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100}
	for _, q := range []float64{0, 0.05, 0.5, 0.99, 1} {
		assert.InDelta(t, 100*q, quantile(sorted, q), 1e-9)
	}
}

func TestDifferencesAndQuotientsAreOfTheSameWindow(t *testing.T) {
	a, b := []float64{10, 30}, []float64{5, 10}
	assert.Equal(t, []float64{5, 20}, differences(a, b))
	assert.Equal(t, []float64{2, 3}, quotients(a, b))
	assert.Equal(t, []float64{10, 30}, a)
}

func TestNumbers(t *testing.T) {
	for _, test := range []struct {
		value float64
		want  string
	}{
		{0, "0.00"},
		{0.999, "1.00"},
		{1.234, "1.23"},
		{-1.234, "-1.23"},
		{9.994, "9.99"},
		{9.996, "10.0"},
		{99.96, "100"},
		{123.4, "123"},
		{999.6, "1,000"},
		{1234, "1,230"},
		{-1234, "-1,230"},
		{98765, "98,800"},
		{1234567, "1,230,000"},
	} {
		assert.Equal(t, test.want, number(test.value))
	}
	assert.Equal(t, "1.50 (1.00–2.00)", summary{1.5, 1, 2}.String())
}

func TestThousands(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", -999: "-999", 1000: "1,000", -1000: "-1,000", 1234567: "1,234,567"} {
		assert.Equal(t, want, thousands(n))
	}
}

func TestAlternate(t *testing.T) {
	var calls [3]int
	var windows []func() error
	for i := range calls {
		windows = append(windows, func() error {
			calls[i]++
			// Each round calls each window once.
			for _, n := range calls {
				assert.InDelta(t, calls[i], n, 1)
			}
			return nil
		})
	}
	require.NoError(t, alternate(4, windows))
	assert.Equal(t, [3]int{4, 4, 4}, calls)

	failed := errors.New("failed")
	assert.Equal(t, failed, alternate(4, []func() error{func() error { return failed }}))
}

func TestCPUTimeGrowsWithWork(t *testing.T) {
	before, err := cpuTime()
	require.NoError(t, err)
	for after := before; after == before; {
		after, err = cpuTime()
		require.NoError(t, err)
		require.GreaterOrEqual(t, after, before)
	}
}
