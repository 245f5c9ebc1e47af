package outage

import (
	"net/http"
	"time"
)

// endless is when a queue is done that is never done. Later times would
// overflow.
const endless = 100 * 365 * 24 * time.Hour

// A Queue is a server that works off one attempt after another. It goes on with
// attempts whose clients have given up, as servers do.
type Queue struct {
	Service time.Duration // of one attempt
	Latency time.Duration // of the network, added to each answer

	// From SlowFrom to SlowTo, the server works at the share Speed of its usual
	// speed, which may be 0.
	SlowFrom, SlowTo time.Duration
	Speed            float64

	// From ColdFrom to ColdTo, its speed grows from a tenth.
	ColdFrom, ColdTo time.Duration

	free time.Duration // when all attempts so far are done
}

// Answer returns the answer to an attempt that arrives now.
func (q *Queue) Answer(now time.Duration) Answer {
	q.free = max(q.free, now)
	if q.Speed == 0 && q.free >= q.SlowFrom {
		q.free = max(q.free, q.SlowTo)
	}
	service := q.Service
	if q.free >= q.ColdFrom && q.free < q.ColdTo {
		share := 0.1 + 0.9*float64(q.free-q.ColdFrom)/float64(q.ColdTo-q.ColdFrom)
		service = time.Duration(float64(service) / share)
	}
	q.free = q.done(service)
	return Answer{After: q.free - now + q.Latency, Status: http.StatusOK}
}

// done returns when some more work is done. It may begin before the slow time,
// in it or after it.
func (q *Queue) done(work time.Duration) time.Duration {
	at := q.free
	if before := q.SlowFrom - at; before > 0 {
		if work <= before {
			return at + work
		}
		at, work = q.SlowFrom, work-before
	}
	if slow := q.SlowTo - at; slow > 0 {
		capacity := time.Duration(float64(slow) * q.Speed)
		if work <= capacity {
			return at + time.Duration(float64(work)/q.Speed)
		}
		at, work = q.SlowTo, work-capacity
	}
	return min(at+work, endless)
}
