// Package spread measures how a strategy spreads the retries of clients that
// have failed at the same moment, and whose attempts take no time.
package spread

import (
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

// Peak returns how many retries arrive in the fullest bucket of the given
// width, as a share of the clients.
//
// The fullest bucket of a sample is full by chance, too. So the bucket is
// chosen by one half of the clients and measured with the other half.
func (s *Sample) Peak(width time.Duration) float64 {
	var halves [2]map[time.Duration]int
	for h := range halves {
		halves[h] = map[time.Duration]int{}
	}
	for _, arrivals := range s.Arrivals {
		for i, at := range arrivals {
			halves[i%2][at/width]++
		}
	}
	sum := 0
	for h, buckets := range halves {
		fullest, most := time.Duration(0), 0
		for bucket, n := range buckets {
			if n > most || n == most && bucket < fullest {
				fullest, most = bucket, n
			}
		}
		sum += halves[1-h][fullest]
	}
	return float64(sum) / float64(len(s.Waits[0]))
}

// Arriving returns the share of the clients that arrive in each bucket of the
// given width up to end, all retries together, and the middles of the buckets
// in seconds.
func (s *Sample) Arriving(width, end time.Duration) (x, y []float64) {
	y = make([]float64, end/width)
	for _, arrivals := range s.Arrivals {
		for _, at := range arrivals {
			if i := int(at / width); i < len(y) {
				y[i]++
			}
		}
	}
	for i := range y {
		x = append(x, (time.Duration(i)*width + width/2).Seconds())
		y[i] /= float64(len(s.Waits[0]))
	}
	return x, y
}

// perDoubling is the number of bins for each doubling of a wait.
const perDoubling = 8

// Waiting returns the share of the waits before a retry in bins that are equal
// on a logarithmic axis, from one duration to another, and the middles of the
// bins in seconds.
func (s *Sample) Waiting(retry int, from, to time.Duration) (x, y []float64) {
	bin := func(d time.Duration) int {
		return int(math.Floor(perDoubling * math.Log2(float64(d)/float64(from))))
	}
	y = make([]float64, bin(to)+1)
	for _, w := range s.Waits[retry] {
		if i := bin(max(w, 1)); i >= 0 && i < len(y) {
			y[i]++
		}
	}
	for i := range y {
		x = append(x, from.Seconds()*math.Exp2((float64(i)+0.5)/perDoubling))
		y[i] /= float64(len(s.Waits[retry]))
	}
	return x, y
}
