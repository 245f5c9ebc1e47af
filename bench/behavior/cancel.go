package main

import (
	"context"
	"errors"
	"time"
)

// longWait is longer than any row takes.
const longWait = time.Minute

// cancelWait cancels a request that waits a minute for its retry. The client
// must return at once, with an error that is context.Canceled.
func cancelWait(t *trial) cell {
	srv := t.answers("busy", 503)
	ctx, cancel := context.WithCancel(context.Background())
	const after = 300 * time.Millisecond
	defer time.AfterFunc(after, cancel).Stop()
	const limit = 2 * time.Second
	r := t.send(t.client(longWait), t.request("GET", srv.URL(), "").WithContext(ctx), limit)
	switch {
	case r.hung:
		return judge(false, "ignored (stopped after %v)", limit)
	case r.err == nil:
		return cell{text: "does not wait"}
	case errors.Is(r.err, context.Canceled):
		return judge(r.took < after+time.Second/2, "`context.Canceled` %s", seconds(r.took-after))
	}
	return judge(false, "another error %s", seconds(r.took-after))
}

// deadlineWait sends a request whose deadline is in a second, and whose retry
// is in a minute. Waiting for the deadline is of no use, so the response must
// be returned at once.
func deadlineWait(t *trial) cell {
	srv := t.answers("busy", 503)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	const limit = 3 * time.Second
	r := t.send(t.client(longWait), t.request("GET", srv.URL(), "").WithContext(ctx), limit)
	switch {
	case r.hung:
		return judge(false, "ignored (stopped after %v)", limit)
	case r.err != nil:
		return judge(false, "error %s", seconds(r.took))
	}
	return judge(r.status == 503 && r.took < time.Second/2, "%d %s", r.status, seconds(r.took))
}
