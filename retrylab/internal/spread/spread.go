// Package spread measures how a strategy spreads the retries of clients that
// have failed at the same moment, and whose attempts take no time.
package spread

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/seed421102f4/httpretry/strategies"
)

// A Sample is the retries of many clients.
type Sample struct {
	Waits    [][]time.Duration // by retry, in ascending order
	Arrivals [][]time.Duration // after the failure, by retry, of the clients in order
}

// Take draws the waits of clients before their retries.
func Take(s strategies.Strategy, clients, retries int) *Sample {
	all := &Sample{make([][]time.Duration, retries), make([][]time.Duration, retries)}
	for k := range retries {
		all.Waits[k] = make([]time.Duration, clients)
		all.Arrivals[k] = make([]time.Duration, clients)
	}
	for i := range clients {
		next, at := s.Start(), time.Duration(0)
		for k := range retries {
			wait := max(0, next())
			at += wait
			all.Waits[k][i], all.Arrivals[k][i] = wait, at
		}
	}
	for _, w := range all.Waits {
		slices.Sort(w)
	}
	return all
}

// Quantile returns the wait before a retry that the share p of the waits does
// not exceed.
func (s *Sample) Quantile(retry int, p float64) time.Duration {
	w := s.Waits[retry]
	return w[min(int(p*float64(len(w))), len(w)-1)]
}

// Mean returns the mean wait before a retry.
func (s *Sample) Mean(retry int) time.Duration {
	sum := 0.0
	for _, w := range s.Waits[retry] {
		sum += float64(w)
	}
	return time.Duration(sum / float64(len(s.Waits[retry])))
}

// Peaks returns, for each width, the largest share of the clients of which a
// retry arrives within an interval of that width. A client counts once, however
// many of its retries do.
func (s *Sample) Peaks(widths ...time.Duration) []float64 {
	type arrival struct {
		at     time.Duration
		client int32
	}
	var all []arrival
	for _, arrivals := range s.Arrivals {
		for i, at := range arrivals {
			all = append(all, arrival{at, int32(i)})
		}
	}
	slices.SortFunc(all, func(a, b arrival) int { return cmp.Compare(a.at, b.at) })
	var peaks []float64
	for _, width := range widths {
		inside := make([]uint8, len(s.Waits[0])) // retries of each client
		first, clients, most := 0, 0, 0
		for _, a := range all {
			for ; a.at-all[first].at >= width; first++ {
				if inside[all[first].client]--; inside[all[first].client] == 0 {
					clients--
				}
			}
			if inside[a.client]++; inside[a.client] == 1 {
				clients++
			}
			most = max(most, clients)
		}
		peaks = append(peaks, float64(most)/float64(len(inside)))
	}
	return peaks
}

// atomShare is the least share of the clients at an atom. Random times are
// never so equal.
const atomShare = 0.01

// A density is shares of the clients by time: in bins, and at atoms, which are
// single times that many clients share. A bin does not include its atoms.
type density struct {
	bins  []float64
	atoms []atom
}

type atom struct {
	at    time.Duration
	bin   int
	share float64
}

// add adds times, which are in ascending order.
func (d *density) add(times []time.Duration, clients int, bin func(time.Duration) int) {
	for first := 0; first < len(times); {
		at, end := times[first], first+1
		for end < len(times) && times[end] == at {
			end++
		}
		share := float64(end-first) / float64(clients)
		first = end
		i := bin(at)
		switch {
		case i < 0 || i >= len(d.bins):
		case share >= atomShare:
			d.atoms = append(d.atoms, atom{at, i, share})
		default:
			d.bins[i] += share
		}
	}
}

// points returns the shares in the order of time. Those of bins are at their
// middles, and atoms stand on their bins.
func (d *density) points(middle func(bin int) float64) (x, y []float64) {
	shares := map[float64]float64{}
	for i, share := range d.bins {
		shares[middle(i)] = share
	}
	for _, a := range d.atoms {
		shares[a.at.Seconds()] = d.bins[a.bin] + a.share
	}
	x = slices.Sorted(maps.Keys(shares))
	for _, at := range x {
		y = append(y, shares[at])
	}
	return x, y
}

// Arriving returns the share of the clients that arrive in each bin of the
// given width up to end, all retries together, at the middles of the bins in
// seconds. Times at which many clients arrive have points of their own.
func (s *Sample) Arriving(width, end time.Duration) (x, y []float64) {
	all := slices.Concat(s.Arrivals...)
	slices.Sort(all)
	d := density{bins: make([]float64, end/width)}
	d.add(all, len(s.Waits[0]), func(at time.Duration) int { return int(at / width) })
	return d.points(func(i int) float64 { return (time.Duration(i)*width + width/2).Seconds() })
}

// perDoubling is the number of bins for each doubling of a wait.
const perDoubling = 8

// Waiting returns the share of the waits before a retry in bins that are equal
// on a logarithmic axis, from one duration to another, at the middles of the
// bins in seconds. Waits that many clients share have points of their own.
func (s *Sample) Waiting(retry int, from, to time.Duration) (x, y []float64) {
	bin := func(d time.Duration) int {
		return int(math.Floor(perDoubling * math.Log2(float64(max(d, 1))/float64(from))))
	}
	d := density{bins: make([]float64, bin(to)+1)}
	d.add(s.Waits[retry], len(s.Waits[retry]), bin)
	// A logarithmic axis has no place for 0.
	for i := range d.atoms {
		d.atoms[i].at = max(d.atoms[i].at, 1)
	}
	return d.points(func(i int) float64 { return from.Seconds() * math.Exp2((float64(i)+0.5)/perDoubling) })
}
