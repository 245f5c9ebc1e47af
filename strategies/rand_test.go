package strategies_test

import (
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/faults"
	"github.com/seed421102f4/httpretry/strategies"
)

// childEnv makes the test binary print waits and exit, for tests that compare
// processes.
const childEnv = "STRATEGIES_TEST_PRINT_WAITS"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		printWaits(os.Stdout)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// printWaits prints waits of each model with a seed, and then waits of each
// model from the shared source.
func printWaits(out io.Writer) {
	for _, m := range models {
		fmt.Fprintln(out, "seeded", m.name, waitsOf(m, strategies.Seeded(42)))
	}
	for _, m := range models {
		fmt.Fprintln(out, "shared", m.name, waitsOf(m, nil))
	}
}

// waitsOf returns four waits in nanoseconds.
func waitsOf(m model, r strategies.Rand) []int64 {
	var waits []int64
	for _, w := range strategies.Take(m.make(time.Second, 30*time.Second, r), 4) {
		waits = append(waits, int64(w))
	}
	return waits
}

// Processes that start at the same time get the same waits with a seed, on one
// processor and on many, and different waits without one. Hazard I9.
func TestProcesses(t *testing.T) {
	t.Parallel()
	const processes = 16
	self, err := os.Executable()
	require.NoError(t, err)
	outputs := make([]string, processes)
	var wg sync.WaitGroup
	for i := range outputs {
		wg.Go(func() {
			cmd := faults.Command(t, self)
			cmd.Env = append(os.Environ(), childEnv+"=1", fmt.Sprint("GOMAXPROCS=", 1+i%2*3))
			out, err := cmd.Output()
			assert.NoError(t, err)
			outputs[i] = string(out)
		})
	}
	wg.Wait()

	var here strings.Builder
	printWaits(&here)
	wantSeeded := strings.Split(here.String(), "\n")[:len(models)]
	firstTwo := make(map[string]bool)
	for _, out := range outputs {
		lines := strings.Split(out, "\n")
		require.GreaterOrEqual(t, len(lines), 2*len(models), out)
		assert.Equal(t, wantSeeded, lines[:len(models)])
		for i, line := range lines[len(models) : 2*len(models)] {
			waits := strings.Fields(line)
			require.Len(t, waits, 6, line)
			key := fmt.Sprint(models[i].name, waits[2:4])
			assert.False(t, firstTwo[key], "%s: two processes wait the same", key)
			firstTwo[key] = true
		}
	}
}

// Simulations that were published with a seed can be repeated with any later
// version.
func TestSeededNeverChanges(t *testing.T) {
	for seed, want := range map[uint64][]float64{
		0:              {0.6935515115613659, 0.8399114091804404, 0.3149854098439504},
		1:              {0.6859924046925399, 0.7164181434079602, 0.005836791231136451},
		math.MaxUint64: {0.39143554681378145, 0.2907948961642923, 0.9980551380503645},
	} {
		r := strategies.Seeded(seed)
		assert.Equal(t, want, []float64{r(), r(), r()}, "seed %d", seed)
	}
	// The first two numbers of SplitMix64 from 0 are well known. Waits of up to
	// 104 days need all 53 bits.
	pcg, zero := rand.NewPCG(0xe220a8397b1dcdaf, 0x6e789e6aa1b965f4), strategies.Seeded(0)
	for range 100 {
		assert.Equal(t, float64(pcg.Uint64()>>11)/(1<<53), zero())
	}
}

// Goroutines that share a Seeded get different numbers, and none is lost.
func TestSeededIsSafeForConcurrentUse(t *testing.T) {
	const goroutines, each = 8, 1000
	r, got := strategies.Seeded(1), make([]float64, goroutines*each)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range each {
				got[g*each+i] = r()
			}
		})
	}
	wg.Wait()
	want, alone := make([]float64, len(got)), strategies.Seeded(1)
	for i := range want {
		want[i] = alone()
	}
	slices.Sort(got)
	slices.Sort(want)
	assert.Equal(t, want, got)
}
