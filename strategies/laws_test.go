package strategies_test

import (
	"math"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/strategies"
)

const second = 1e9

// A law is the distribution of a wait in nanoseconds: a CDF that is linear
// between the points (x, f), with an atom at the last x if the last f is below
// 1. It is computed from formulas, never by the code under test.
type law struct{ x, f []float64 }

func uniformLaw(lo, hi float64) law {
	return law{[]float64{lo, hi}, []float64{0, 1}}
}

// uniformCutLaw is min(limit, uniform(lo, hi)).
func uniformCutLaw(lo, hi, limit float64) law {
	if hi <= limit {
		return uniformLaw(lo, hi)
	}
	return law{[]float64{lo, limit}, []float64{0, (limit - lo) / (hi - lo)}}
}

func (l law) inf() float64    { return l.x[0] }
func (l law) sup() float64    { return l.x[len(l.x)-1] }
func (l law) atom() float64   { return 1 - l.f[len(l.f)-1] }
func (l law) isUniform() bool { return len(l.x) == 2 && l.atom() == 0 }

// walk returns the CDF for ascending arguments, in constant time each.
func (l law) walk() func(x float64) float64 {
	i := 1
	return func(x float64) float64 {
		switch {
		case x < l.inf():
			return 0
		case x >= l.sup():
			return 1
		}
		for l.x[i] <= x {
			i++
		}
		return l.f[i-1] + (l.f[i]-l.f[i-1])*(x-l.x[i-1])/(l.x[i]-l.x[i-1])
	}
}

func (l law) quantile(p float64) float64 {
	i := sort.SearchFloat64s(l.f, p)
	switch {
	case i == len(l.f):
		return l.sup()
	case i == 0:
		return l.inf()
	}
	return l.x[i-1] + (l.x[i]-l.x[i-1])*(p-l.f[i-1])/(l.f[i]-l.f[i-1])
}

func (l law) moments() (mean, sd float64) {
	square := l.atom() * l.sup() * l.sup()
	mean = l.atom() * l.sup()
	for i := 1; i < len(l.x); i++ {
		mass, a, b := l.f[i]-l.f[i-1], l.x[i-1], l.x[i]
		mean += mass * (a + b) / 2
		square += mass * (a*a + a*b + b*b) / 3
	}
	return mean, math.Sqrt(square - mean*mean)
}

// density returns a bound of the density. For a law that is a table, it is four
// times the largest slope of the table.
func (l law) density() float64 {
	slope := 0.0
	for i := 1; i < len(l.x); i++ {
		slope = max(slope, (l.f[i]-l.f[i-1])/(l.x[i]-l.x[i-1]))
	}
	if len(l.x) > 2 {
		slope *= 4
	}
	return slope
}

// points approximates the law by n equally likely waits, and one more for the
// atom.
func (l law) points(n int) (x, weight []float64) {
	rest := 1 - l.atom()
	for i := range n {
		x = append(x, l.quantile(rest*(float64(i)+0.5)/float64(n)))
		weight = append(weight, rest/float64(n))
	}
	if l.atom() > 0 {
		x, weight = append(x, l.sup()), append(weight, l.atom())
	}
	return x, weight
}

// chain returns the laws of waits that are uniform in [b, 3p), where p is the
// wait before. c limits them before the random number is drawn (ceiling) or
// after it. chain also returns the correlations of consecutive waits.
func chain(b, c float64, ceiling bool, n int) (laws []law, serial []float64) {
	top := func(p float64) float64 { return 3 * p }
	if ceiling {
		top = func(p float64) float64 { return min(c, 3*p) }
	}
	laws = append(laws, uniformCutLaw(b, top(b), c))
	for k := range n - 1 {
		p, weight := laws[k].points(1000)
		next := chainLaw(p, weight, b, min(c, b*math.Pow(3, float64(k+2))), top)
		product := 0.0
		for i := range p {
			l := uniformCutLaw(b, top(p[i]), c)
			mean, _ := l.moments()
			product += weight[i] * p[i] * mean
		}
		serial = append(serial, correlation(product, laws[k], next))
		laws = append(laws, next)
	}
	return laws, serial
}

// chainLaw mixes the laws of the waits after each p. The ps ascend. No wait is
// longer than hi.
func chainLaw(p, weight []float64, b, hi float64, top func(float64) float64) law {
	const grid = 1000
	slopes := 0.0 // of the CDFs that do not reach 1 before x
	for i := range p {
		slopes += weight[i] / (top(p[i]) - b)
	}
	l := law{make([]float64, grid+1), make([]float64, grid+1)}
	i, full := 0, 0.0
	for j := range l.x {
		x := b * math.Pow(hi/b, float64(j)/grid)
		for ; i < len(p) && top(p[i]) <= x; i++ {
			full += weight[i]
			slopes -= weight[i] / (top(p[i]) - b)
		}
		l.x[j], l.f[j] = x, min(1, full+slopes*(x-b))
	}
	if 1-l.f[grid] < 1e-9 {
		l.f[grid] = 1 // no atom: a rounding error
	}
	return l
}

func correlation(meanProduct float64, x, y law) float64 {
	meanX, sdX := x.moments()
	meanY, sdY := y.moments()
	return (meanProduct - meanX*meanY) / (sdX * sdY)
}

// soft is the function whose differences are the waits of DecorrelatedV2.
func soft(t float64) float64 { return math.Pow(2, t) * math.Tanh(math.Sqrt(4*t)) }

// softTable inverts soft. It is a table over the root of the argument of soft,
// in which soft is smooth.
type softTable struct{ h []float64 }

const softStep = 1.0 / 4096

func newSoftTable(limit float64) softTable {
	h := make([]float64, int(math.Sqrt(limit)/softStep)+2)
	for i := range h {
		s := float64(i) * softStep
		h[i] = soft(s * s)
	}
	return softTable{h}
}

func (t softTable) inverse(h float64) float64 {
	i := min(max(1, sort.SearchFloat64s(t.h, h)), len(t.h)-1)
	s := (float64(i-1) + (h-t.h[i-1])/(t.h[i]-t.h[i-1])) * softStep
	return s * s
}

// v2 contains the parameters of DecorrelatedV2: Median/1.4 and Max.
type v2 struct{ scale, limit float64 }

const v2Points = 400 // of a window, for integration by the midpoint rule

// window returns scale·soft at n points of window k. Point i is at the share
// (i+at)/n of the window. Before the first retry, the only value is 0.
func (v v2) window(k, n int, at float64) []float64 {
	if k < 0 {
		return []float64{0}
	}
	h := make([]float64, n)
	for i := range h {
		h[i] = v.scale * soft(float64(k)+(float64(i)+at)/float64(n))
	}
	return h
}

// law integrates over the position of the retry before, on which the wait
// depends. A wait of Max or more is drawn again between Max/2 and Max.
func (v v2) law(k int) law {
	const steps, grid = 800, 400
	edges := append(v.window(k, steps, 0), v.scale*soft(float64(k+1)))
	hi := min(v.limit, edges[steps]-v.window(k-1, 1, 0)[0])
	l := law{make([]float64, grid+1), make([]float64, grid+1)}
	before := v.window(k-1, v2Points, 0.5)
	for _, h := range before {
		i := 0
		for j := range l.x {
			l.x[j] = hi * float64(j) / grid
			for i < steps-1 && edges[i+1] < l.x[j]+h {
				i++
			}
			u := (float64(i) + (l.x[j]+h-edges[i])/(edges[i+1]-edges[i])) / steps
			l.f[j] += min(max(u, 0), 1) / float64(len(before))
		}
	}
	if over := 1 - l.f[grid]; hi == v.limit {
		for j, x := range l.x {
			l.f[j] += over * max(0, 2*x/v.limit-1)
		}
	}
	l.f[grid] = 1
	return l
}

// meanProduct returns the mean of the product of wait k and the next. Both
// depend on the position of retry k.
func (v v2) meanProduct(k int) float64 {
	wait := func(d float64) float64 { // on average
		if d >= v.limit {
			return 0.75 * v.limit
		}
		return d
	}
	before, middle, after := v.window(k-1, v2Points, 0.5), v.window(k, v2Points, 0.5),
		v.window(k+1, v2Points, 0.5)
	product := 0.0
	for _, h := range middle {
		a, b := 0.0, 0.0
		for _, g := range before {
			a += wait(h-g) / float64(len(before))
		}
		for _, g := range after {
			b += wait(g-h) / v2Points
		}
		product += a * b / v2Points
	}
	return product
}

func v2Laws(median, limit float64, n int) (laws []law, serial []float64) {
	v := v2{median / 1.4, limit}
	for k := range n {
		laws = append(laws, v.law(k))
	}
	for k := range n - 1 {
		serial = append(serial, correlation(v.meanProduct(k), laws[k], laws[k+1]))
	}
	return laws, serial
}

// A model is a random strategy and its known properties.
type model struct {
	name string
	make func(b, c time.Duration, r strategies.Rand) strategies.Strategy
	// of n waits, and the correlations of consecutive waits, nil for 0
	laws func(b, c float64, n int) ([]law, []float64)
	// the largest density of a client's first five retries together, per
	// second, with a Base of 1s and a Max of 30s
	peak float64
	// of the waits after p; nil if none depends on p alone
	top func(p float64) (hi float64, ok bool)
}

// Retries of a client have densities that add up. Until the first maximum, 1s,
// that of n waits of FullJitter is t^(n-1)/(n-1)! over the product of their
// maxima. Afterward, the first wait is over, and the sum is lower.
const fullPeak = 1 + 1.0/2 + 1.0/(2*2*4) + 1.0/(6*2*4*8) + 1.0/(24*2*4*8*16)

// The first wait p of Decorrelated has the density 1/2 from 1s to 3s. Just
// before 3s, second retries follow those of up to 2s, with the density 1/(3p-1)
// for each p. Until 3s, there are no third retries.
var decorrelatedPeak = 1.0/2 + math.Log(5.0/2)/6

// independent returns the laws of a strategy whose waits do not depend on one
// another.
func independent(at func(b, c float64, k int) law) func(b, c float64, n int) ([]law, []float64) {
	return func(b, c float64, n int) ([]law, []float64) {
		laws := make([]law, n)
		for k := range laws {
			laws[k] = at(b, c, k)
		}
		return laws, make([]float64, n-1)
	}
}

func fullLaw(b, c float64, k int) law { return uniformLaw(0, min(c, math.Ldexp(b, k))) }
func halfLaw(b, c float64, k int) law {
	w := min(c, math.Ldexp(b, k))
	return uniformLaw(w/2, w)
}
func spreadLaw(b, c float64, k int) law {
	w := min(c, b*float64(k+1))
	return uniformLaw(0.75*w, 1.25*w)
}
func cutLaw(b, c float64, k int) law { return uniformCutLaw(0, math.Ldexp(b, k), c) }

// jitterAfterCap is the formula of httpx-retries: jitter first, then the
// maximum, which is an atom.
func jitterAfterCap(b, c time.Duration, r strategies.Rand) strategies.Strategy {
	return strategies.Capped{
		Of:  strategies.Jitter{Of: strategies.Exponential{Base: b, Max: math.MaxInt64}, Rand: r},
		Max: c,
	}
}

var models = []model{
	{
		"FullJitter",
		func(b, c time.Duration, r strategies.Rand) strategies.Strategy {
			return strategies.FullJitter{Base: b, Max: c, Rand: r}
		},
		independent(fullLaw), fullPeak, nil,
	},
	{
		"EqualJitter",
		func(b, c time.Duration, r strategies.Rand) strategies.Strategy {
			return strategies.EqualJitter{Base: b, Max: c, Rand: r}
		},
		independent(halfLaw), 2, nil, // the first retry alone
	},
	{
		"Decorrelated",
		func(b, c time.Duration, r strategies.Rand) strategies.Strategy {
			return strategies.Decorrelated{Base: b, Max: c, Rand: r}
		},
		func(b, c float64, n int) ([]law, []float64) { return chain(b, c, true, n) },
		decorrelatedPeak,
		func(p float64) (float64, bool) { return min(3*p, 30*second), true },
	},
	{
		"AWSDecorrelated",
		func(b, c time.Duration, r strategies.Rand) strategies.Strategy {
			return strategies.AWSDecorrelated{Base: b, Max: c, Rand: r}
		},
		func(b, c float64, n int) ([]law, []float64) { return chain(b, c, false, n) },
		decorrelatedPeak,
		func(p float64) (float64, bool) { return 3 * p, 3*p <= 30*second },
	},
	{
		"DecorrelatedV2",
		func(b, c time.Duration, r strategies.Rand) strategies.Strategy {
			return strategies.DecorrelatedV2{Median: b, Max: c, Rand: r}
		},
		v2Laws, 1.0919, nil, // at 0.9655 of Median
	},
	{
		"Spread",
		func(b, c time.Duration, r strategies.Rand) strategies.Strategy {
			return strategies.Spread{Of: strategies.Linear{Base: b, Max: c}, Rand: r}
		},
		independent(spreadLaw), 2, nil, // the first retry alone
	},
	{"CappedJitter", jitterAfterCap, independent(cutLaw), fullPeak, nil},
}

// The laws on which the checks depend agree with their closed forms.
func TestLaws(t *testing.T) {
	const b, c = 1 * second, 30 * second

	laws, serial := chain(b, 1e9*second, false, 5)
	for k, l := range laws {
		mean, _ := l.moments()
		assert.InEpsilon(t, b*(2*math.Pow(1.5, float64(k+1))-1), mean, 1e-3,
			"the mean of uncapped wait %d", k)
	}
	assert.InDelta(t, 0.5, serial[0], 0.01)

	laws, _ = chain(b, c, false, 40)
	mean, _ := laws[39].moments()
	assert.InEpsilon(t, 18.5806*second, mean, 1e-3)
	assert.InDelta(t, 0.381123, laws[39].atom(), 1e-3)

	laws, _ = chain(b, c, true, 40)
	mean, _ = laws[39].moments()
	assert.InEpsilon(t, 11.5481*second, mean, 1e-3)

	laws, serial = v2Laws(b, c, 8)
	assert.InEpsilon(t, 0.8974*second, laws[0].quantile(0.5), 1e-3)
	assert.InDelta(t, -0.60, serial[0], 0.005)
	table := newSoftTable(9)
	for _, x := range []float64{0, 1e-6, 0.3, 1, 2.5, 8.99} {
		assert.InDelta(t, x, table.inverse(soft(x)), 1e-6)
	}
}
