package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry/internal/faults"
)

// askForWait gets a 503 with header lines, then a 200. It returns how many
// requests arrived within limit.
func (t *trial) askForWait(limit time.Duration, header ...string) (reply, int32) {
	srv := t.serve(func(n int, c *faults.Conn, _ string) bool {
		if n == 1 {
			c.Respond(503, "busy", header...)
		} else {
			c.Respond(200, "")
		}
		return true
	})
	r := t.send(t.client(shortWait), t.request("GET", srv.URL(), ""), limit)
	return r, srv.Requests.Load()
}

// retryAfterDay gets a 503 that asks for a wait of a day. No caller wants to
// wait that long, and a retry before that ignores the server. So the response
// must be returned at once.
func retryAfterDay(t *trial) cell { return t.tooLong("86400") }

// retryAfterOverflow is the same with a number of seconds that, in
// nanoseconds, exceeds the range of an int64.
func retryAfterOverflow(t *trial) cell { return t.tooLong("9223372037") }

func (t *trial) tooLong(value string) cell {
	const limit = 2 * time.Second
	r, requests := t.askForWait(limit, "Retry-After: "+value)
	switch {
	case requests > 1:
		return judge(false, "retried %s", seconds(r.took))
	case r.hung:
		return judge(false, "waits (stopped after %v)", limit)
	case r.err != nil:
		return judge(false, "error, no response")
	}
	return judge(r.status == 503 && r.took < time.Second, "%d %s", r.status, seconds(r.took))
}

// clockAhead gets a 503 with a date two seconds after that in the Date header.
// The server's clock is an hour ahead of the client's. The server asks for a
// wait of the difference of the two dates, so the retry must be two seconds
// later.
func clockAhead(t *trial) cell { return t.skewed(time.Hour) }

// clockBehind is the same with a clock an hour behind.
func clockBehind(t *trial) cell { return t.skewed(-time.Hour) }

func (t *trial) skewed(skew time.Duration) cell {
	const asked, limit = 2 * time.Second, 5 * time.Second
	date := time.Now().Add(skew).UTC()
	r, requests := t.askForWait(limit,
		"Date: "+date.Format(http.TimeFormat), "Retry-After: "+date.Add(asked).Format(http.TimeFormat))
	switch {
	case requests > 1:
		return judge(r.took >= asked && r.took < 2*asked, "retried %s", seconds(r.took))
	case r.hung:
		return judge(false, "waits (stopped after %v)", limit)
	}
	return cell{text: fmt.Sprintf("not retried: %d", r.status)}
}
