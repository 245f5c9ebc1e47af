package window_test

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/window"
)

// newWindow returns a Window of 10 seconds without a burst. The tests of
// httpretry.HostBudget are those of the law.
func newWindow(ratio float64) *window.Window {
	w := new(window.Window)
	w.Open(ratio, 0, 10*time.Second)
	return w
}

// The expected values are computed with integers, so that no float is rounded.
func TestRatioIsExactForAnyFractionAndNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		for range 20_000 {
			den := []int64{
				10, 100, 1000, 10_000, 1_000_000, 3, 7, 60, 1 + r.Int64N(1<<26)}[r.IntN(9)]
			num := 1 + den/1_000_000 + r.Int64N(den)
			successes := r.Uint64() >> r.IntN(64)

			w := newWindow(float64(num) / float64(den))
			window.DepositMany(w, successes)
			want := new(big.Int).SetUint64(successes)
			want.Div(want.Mul(want, big.NewInt(num)), big.NewInt(den))
			if want.Cmp(big.NewInt(math.MaxInt)) > 0 {
				want.SetInt64(math.MaxInt)
			}
			require.Equal(t, want.Int64(), int64(w.Balance()), "%d/%d of %d", num, den, successes)
		}
	})
}

// Any other ratio is exact to within the rounding of a float64.
func TestRatioIsCloseForAnyFloat(t *testing.T) {
	const successes = 1 << 40
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(3, 4))
		for i := range 20_000 {
			ratio := math.Pow(10, -6+12*r.Float64())
			if i%4 == 0 { // numbers next to whole numbers have the longest fractions
				ratio = math.Nextafter(math.Round(ratio)+1, float64(r.IntN(2))*1e9)
			}
			ratio = min(ratio, 1e6)
			w := newWindow(ratio)
			window.DepositMany(w, successes)
			want := min(ratio*successes, math.MaxInt)
			require.InDelta(t, want, w.Balance(), 1+want*0x1p-51, "%v", ratio)
		}
	})
}

// Hazard I2.
func TestBalanceDoesNotWrapAround(t *testing.T) {
	for _, ratio := range []float64{0.000001, 0.1, 1, 2, 1_000_000} {
		w := newWindow(ratio)
		last := 0
		for shift := range 64 {
			window.DepositMany(w, 1<<shift) // 2⁶⁴−1 in the end
			balance := w.Balance()
			require.GreaterOrEqual(t, balance, last, "ratio %v, shift %d", ratio, shift)
			require.Equal(t, balance > 0, w.Withdraw(1))
			last = max(balance-1, 0)
		}
		require.GreaterOrEqual(t, int64(last),
			min(int64(18_446_744_073_709), math.MaxInt-1_000_000)-64)
	}
}
