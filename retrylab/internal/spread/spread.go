// Package spread measures how a strategy spreads the retries of clients that
// have failed at the same moment, and whose attempts take no time.
package spread

import (
	"cmp"
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

// Arriving returns the share of the clients that arrive in each bin of the
// given width up to end, all retries together, at the middles of the bins in
// seconds.
func (s *Sample) Arriving(width, end time.Duration) (x, y []float64) {
	for i := range end / width {
		x = append(x, (i*width + width/2).Seconds())
	}
	y = make([]float64, len(x))
	for _, arrivals := range s.Arrivals {
		for _, at := range arrivals {
			if i := int(at / width); i < len(y) {
				y[i] += 1 / float64(len(arrivals))
			}
		}
	}
	return x, y
}
