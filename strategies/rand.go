package strategies

import (
	"math/rand/v2"
	"sync"
	"time"
)

// Rand returns random numbers that are uniform in [0, 1) and independent of one
// another. It must be safe for concurrent use, because the sequences of all
// requests call it. A nil Rand is the shared source of [math/rand/v2].
//
// A number outside [0, 1) counts as the nearest one inside, and NaN as 0.
type Rand func() float64

// belowOne is the largest float64 below 1.
const belowOne = 1 - 1.0/(1<<53)

func (r Rand) draw() float64 {
	if r == nil {
		return rand.Float64()
	}
	switch u := r(); {
	case u >= 1:
		return belowOne
	case u > 0:
		return u
	default: // NaN too
		return 0
	}
}

// Seeded returns a Rand that returns the same numbers for the same seed, in
// every process and on every machine. It is for tests and simulations.
// Different seeds, even consecutive ones, give unrelated numbers. It is safe
// for concurrent use, but which goroutine gets which number is not determined.
//
// The generator is PCG-DXSM, seeded through SplitMix64 (Steele, Lea and Flood,
// 2014). Processes that share a seed wait for the same times, which defeats
// jitter. Leave Rand nil in production.
func Seeded(seed uint64) Rand {
	const gamma = 0x9e3779b97f4a7c15 // SplitMix64's increment: 2^64 divided by the golden ratio
	var mu sync.Mutex
	src := rand.NewPCG(splitMix(seed+gamma), splitMix(seed+gamma+gamma))
	return func() float64 {
		mu.Lock()
		bits := src.Uint64()
		mu.Unlock()
		// PCG's numbers are specified. Those of rand.Rand.Float64 are not.
		return float64(bits>>11) / (1 << 53)
	}
}

// splitMix mixes the bits of z, so that no pattern in seeds remains. PCG alone
// starts consecutive seeds close to each other.
func splitMix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// uniform returns the duration at the share u in [0, 1) of the way from lo to
// hi, where 0 ≤ lo ≤ hi. It is below hi for the first 104 days, as long as
// float64 distinguishes durations a nanosecond apart.
func uniform(lo, hi time.Duration, u float64) time.Duration {
	// The conversion of hi−lo may round up. But u is at most belowOne, so the
	// product is at least one float64 lower.
	return lo + time.Duration(u*float64(hi-lo))
}
