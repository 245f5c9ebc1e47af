package strategies_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/seed421102f4/httpretry/strategies"
)

// Each of the checks below rejects a correct strategy less than three times in
// 10⁹, by the tails of the normal distribution beyond 6σ and by Massart's bound
// on the Kolmogorov-Smirnov statistic. They allow for waits being truncated to
// nanoseconds.

const (
	sigmas  = 6
	massart = 3.2724 // P(√n·D > 3.2724) ≤ 2·exp(−2·3.2724²) = 10⁻⁹
)

// A sample contains the waits of many sequences, by the number of the retry,
// and the distributions that they should have.
type sample struct {
	waits  [][]int64
	laws   []law
	serial []float64 // the true correlations of consecutive waits
}

// collect returns waits of n sequences, each of its own Start.
func collect(n, waits int, start func(i int) strategies.Sequence) [][]int64 {
	all := make([][]int64, waits)
	for k := range all {
		all[k] = make([]int64, n)
	}
	for i := range n {
		next := start(i)
		for k := range all {
			all[k][i] = int64(next())
		}
	}
	return all
}

// sorter sorts by radix. Under the race detector, that is an order of magnitude
// faster than slices.Sort, and new memory is slow, too.
type sorter struct{ from, to []int64 }

// sort returns waits in order. The result is valid until the next call.
func (s *sorter) sort(waits []int64) []int64 {
	const bits = 12
	s.from, s.to = append(s.from[:0], waits...), append(s.to[:0], waits...)
	top := slices.Max(waits)
	for shift := 0; top>>shift > 0; shift += bits {
		var starts [1<<bits + 1]int
		for _, w := range s.from {
			starts[w>>shift&(1<<bits-1)+1]++
		}
		for i := range 1 << bits {
			starts[i+1] += starts[i]
		}
		for _, w := range s.from {
			digit := w >> shift & (1<<bits - 1)
			s.to[starts[digit]] = w
			starts[digit]++
		}
		s.from, s.to = s.to, s.from
	}
	return s.from
}

// A check returns the flaw that it finds in the waits before one retry, which
// are sorted, or in a sample as a whole.
type check struct {
	name  string
	wait  func(sorted []int64, l law) error
	whole func(s sample) error
}

var checks = []check{
	{name: "bound", wait: checkBound},
	{name: "mean", wait: checkMean},
	{name: "quantile", wait: checkQuantiles},
	{name: "ks", wait: checkKS},
	{name: "atom", wait: checkAtom},
	{name: "mult", wait: checkMultiplicity},
	{name: "reach", wait: checkReach},
	{name: "parallel", whole: checkParallel},
	{name: "serial", whole: checkSerial},
}

// verdicts returns the errors of the named checks by their names. No names
// means all checks.
func (s sample) verdicts(names ...string) map[string]error {
	errs := make(map[string]error)
	var order sorter
	for k := range s.waits {
		sorted := order.sort(s.waits[k])
		for _, c := range checks {
			if c.wait == nil || len(names) > 0 && !slices.Contains(names, c.name) {
				continue
			}
			if err := c.wait(sorted, s.laws[k]); err != nil {
				errs[c.name] = errors.Join(
					errs[c.name], fmt.Errorf("%s: wait %d: %w", c.name, k, err))
			}
		}
	}
	for _, c := range checks {
		if c.whole == nil || len(names) > 0 && !slices.Contains(names, c.name) {
			continue
		}
		if err := c.whole(s); err != nil {
			errs[c.name] = fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return errs
}

// against joins the verdicts.
func (s sample) against(names ...string) error {
	errs := s.verdicts(names...)
	return errors.Join(slices.Collect(maps.Values(errs))...)
}

// checkBound finds waits outside the range of the formula.
func checkBound(sorted []int64, l law) error {
	if least, most := float64(sorted[0]), float64(sorted[len(sorted)-1]); least < l.inf()-1 ||
		most > l.sup()+1 {
		return fmt.Errorf("[%v, %v] is not within [%v, %v]", least, most, l.inf(), l.sup())
	}
	return nil
}

func checkMean(sorted []int64, l law) error {
	n, sum := float64(len(sorted)), 0.0
	for _, w := range sorted {
		sum += float64(w)
	}
	mean, sd := l.moments()
	if off := math.Abs(sum/n - mean); off > sigmas*sd/math.Sqrt(n)+1 {
		return fmt.Errorf("%v instead of %v, %.1fσ off", sum/n, mean, off/sd*math.Sqrt(n))
	}
	return nil
}

func checkQuantiles(sorted []int64, l law) error {
	n := float64(len(sorted))
	for _, p := range []float64{0.05, 0.5, 0.95} {
		if p >= 1-l.atom() {
			continue // within the atom, which has a check of its own
		}
		below, _ := slices.BinarySearch(sorted, int64(l.quantile(p))+1)
		if off := math.Abs(float64(below) - n*p); off > sigmas*math.Sqrt(n*p*(1-p)) {
			return fmt.Errorf("%d of %v waits up to the quantile of %v", below, n, p)
		}
	}
	return nil
}

// checkKS compares the waits with the CDF (Kolmogorov-Smirnov).
func checkKS(sorted []int64, l law) error {
	cdf, n, d := l.walk(), float64(len(sorted)), 0.0
	for i, w := range sorted {
		if float64(w) >= l.sup() {
			// Within an atom, only its lower edge counts.
			d = max(d, math.Abs(1-l.atom()-float64(i)/n))
			break
		}
		f := cdf(float64(w))
		d = max(d, f-float64(i)/n, float64(i+1)/n-f)
	}
	if d > massart/math.Sqrt(n) {
		return fmt.Errorf("D = %.4f, more than %.4f", d, massart/math.Sqrt(n))
	}
	return nil
}

// checkAtom counts the waits at the one value to which the law assigns a
// probability of its own.
func checkAtom(sorted []int64, l law) error {
	n, mass := float64(len(sorted)), l.atom()
	if mass == 0 {
		return nil
	}
	first, _ := slices.BinarySearch(sorted, int64(l.sup()))
	count := float64(len(sorted) - first)
	if math.Abs(count-n*mass) > sigmas*math.Sqrt(n*mass*(1-mass))+3 {
		return fmt.Errorf("%v waits at %v instead of %v", count, time.Duration(l.sup()), n*mass)
	}
	return nil
}

// checkMultiplicity finds values that occur too often: another atom, or a grid
// coarser than nanoseconds.
func checkMultiplicity(sorted []int64, l law) error {
	n, density := float64(len(sorted)), l.density()
	limit := 2.0 // the least m for which n^m/m!·density^(m−1) < 10⁻⁹: a union over all m-tuples
	for {
		lg, _ := math.Lgamma(limit + 1)
		if limit*math.Log(n)-lg+(limit-1)*math.Log(density) < math.Log(1e-9) {
			break
		}
		limit++
	}
	run := 0
	for i, w := range sorted {
		if i == 0 || w != sorted[i-1] {
			run = 0
		}
		run++
		if stated := l.atom() > 0 && float64(w) >= l.sup(); !stated && float64(run) >= limit {
			return fmt.Errorf("%v comes up %d times", time.Duration(w), run)
		}
	}
	return nil
}

// checkReach finds uniform waits that do not reach the ends of their interval.
func checkReach(sorted []int64, l law) error {
	if !l.isUniform() {
		return nil
	}
	slack := 21*(l.sup()-l.inf())/float64(len(sorted)) + 1
	if least, most := float64(sorted[0]), float64(sorted[len(sorted)-1]); least > l.inf()+slack ||
		most < l.sup()-slack {
		return fmt.Errorf("[%v, %v] does not fill [%v, %v]", least, most, l.inf(), l.sup())
	}
	return nil
}

// checkParallel correlates sequences that were started one after the other.
func checkParallel(s sample) error {
	for k, waits := range s.waits {
		pairs := float64(len(waits) / 2)
		if r := pearson(waits, waits[1:], 2); !(math.Abs(r) <= sigmas/math.Sqrt(pairs)) {
			return fmt.Errorf("wait %d: r = %.3f", k, r)
		}
	}
	return nil
}

// checkSerial correlates each wait with the next.
func checkSerial(s sample) error {
	for k, want := range s.serial {
		if r := pearson(s.waits[k], s.waits[k+1], 1); !(math.Abs(r-want) <= 0.03) {
			return fmt.Errorf("waits %d and %d: r = %.3f instead of %.3f", k, k+1, r, want)
		}
	}
	return nil
}

// pearson returns the correlation of every step-th x with the y at the same
// index.
func pearson[T int64 | float64](x, y []T, step int) float64 {
	var n, sumX, sumY float64
	for i := 0; i < len(y); i += step {
		n++
		sumX += float64(x[i])
		sumY += float64(y[i])
	}
	var xx, yy, xy float64
	for i := 0; i < len(y); i += step {
		dx, dy := float64(x[i])-sumX/n, float64(y[i])-sumY/n
		xx += dx * dx
		yy += dy * dy
		xy += dx * dy
	}
	return xy / math.Sqrt(xx*yy)
}

// checkUniform is checkKS for numbers that should be uniform in [0, 1).
func checkUniform(u []float64) error {
	scaled := make([]int64, len(u))
	for i, x := range u {
		scaled[i] = int64(min(max(x, 0), 1) * (1 << 36))
	}
	var order sorter
	return checkKS(order.sort(scaled), uniformLaw(0, 1<<36))
}

// checkPeak counts arrivals at the server: all retries of clients that failed
// together at time 0. The density is that of a client, per second.
func checkPeak(waits [][]int64, width time.Duration, density float64) error {
	var counts []int
	at := make([]int64, len(waits[0]))
	for _, column := range waits {
		for i, w := range column {
			at[i] += w
			bucket := int(at[i] / int64(width))
			if bucket >= len(counts) {
				counts = append(counts, make([]int, bucket+1)...)
			}
			counts[bucket]++
		}
	}
	peak := slices.Max(counts)
	if x := 1.01 * float64(len(at)) * density * width.Seconds(); float64(peak) > x+7*math.Sqrt(x) {
		return fmt.Errorf("%d arrivals within %v instead of %.0f", peak, width, x)
	}
	return nil
}

// checkConditional compares each wait with the one before it, p. It should be
// uniform between b and top(p).
func checkConditional(waits [][]int64, b float64, top func(p float64) (hi float64, ok bool)) error {
	for k := range len(waits) - 1 {
		u := make([]float64, 0, len(waits[k]))
		for i, p := range waits[k] {
			if hi, ok := top(float64(p)); ok {
				u = append(u, (float64(waits[k+1][i])-b)/(hi-b))
			}
		}
		if err := checkUniform(u); err != nil {
			return fmt.Errorf("wait %d: %w", k+1, err)
		}
	}
	return nil
}

// windows returns the positions of the retries of DecorrelatedV2 within their
// windows. A retry outside its window is an error.
func windows(waits [][]int64, median float64) ([][]float64, error) {
	table := newSoftTable(float64(len(waits)))
	scale := median / 1.4
	at := make([]int64, len(waits[0]))
	u := make([][]float64, len(waits))
	for k, column := range waits {
		u[k] = make([]float64, len(column))
		lo, hi, slack := scale*soft(float64(k)), scale*soft(float64(k+1)), float64(k+1)
		for i, w := range column {
			at[i] += w
			if t := float64(at[i]); t < lo-slack || t > hi+slack {
				return nil, fmt.Errorf("retry %d at %v, not in [%v, %v)", k, t, lo, hi)
			}
			u[k][i] = table.inverse(float64(at[i])/scale) - float64(k)
		}
	}
	return u, nil
}

// checkScale compares two kinds of waits that were drawn with the same random
// numbers. One kind should be ratio times as long as the other.
func checkScale(short, long [][]int64, ratio float64) error {
	// the short waits are cut to a nanosecond; a walk may triple the difference
	// at each step
	slack := ratio
	for k := range short {
		slack *= 3
		for i, w := range short[k] {
			if a, b := float64(w)*ratio, float64(long[k][i]); math.Abs(a-b) > slack {
				return fmt.Errorf("wait %d: %v and %v", k, a, b)
			}
		}
	}
	return nil
}
