package redisbudget

import (
	"context"
	"crypto/sha1"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

//go:embed budget.lua
var script string

// A request is one execution of the script for one host. It records successes
// and refunds, and then charges for retries. Refunds, need and extra are costs.
type request struct {
	key       string
	successes int64
	age       time.Duration // of the oldest success, at most
	refunds   int64
	helped    int64 // of the successes, those of retries that were charged
	need      int64 // of the retries that are asked for now
	extra     int64 // of retries to lease for later
}

// A reply is the result of a request.
type reply struct {
	granted int64         // of need + extra
	left    time.Duration // until the end of the lease, if there is one
}

// sentOnce is a command that go-redis does not send again once it may have been
// executed, since it would count twice.
type sentOnce struct{ *redis.Cmd }

func (sentOnce) NoRetry() bool { return true }

// exchange executes the script for each request, in one round trip, or in two
// if a server does not know the script yet. If it returns an error, some
// requests may have been executed all the same. The error for a single key is a
// keyError.
func (b *Budget) exchange(ctx context.Context, requests []request) ([]reply, error) {
	sum := sha1.Sum([]byte(script))
	all := make([]sentOnce, len(requests))
	for i, r := range requests {
		all[i] = b.command(ctx, "evalsha", hex.EncodeToString(sum[:]), r)
	}
	b.execute(ctx, all)

	var again []sentOnce
	for i, c := range all {
		if redis.HasErrorPrefix(c.Err(), "NOSCRIPT") {
			all[i] = b.command(ctx, "eval", script, requests[i])
			again = append(again, all[i])
		}
	}
	b.execute(ctx, again)

	replies := make([]reply, len(requests))
	for i, c := range all {
		var err error
		if replies[i], err = b.parse(c, requests[i]); err != nil {
			return nil, &keyError{requests[i].key, err}
		}
	}
	return replies, nil
}

// A keyError is an error about one key.
type keyError struct {
	key string
	err error
}

func (e *keyError) Error() string { return e.err.Error() }
func (e *keyError) Unwrap() error { return e.err }

// execute sends commands. Each command has its own error.
func (b *Budget) execute(ctx context.Context, commands []sentOnce) {
	switch len(commands) {
	case 0:
		return
	case 1:
		_ = b.client.Process(ctx, commands[0])
		return
	}
	pipe := b.client.Pipeline()
	for _, c := range commands {
		_ = pipe.Process(ctx, c)
	}
	_, _ = pipe.Exec(ctx)
}

func (b *Budget) command(ctx context.Context, name, script string, r request) sentOnce {
	c := redis.NewCmd(ctx, name, script, 1, r.key,
		b.window.Microseconds(), b.ratio, b.burst,
		r.successes, r.age.Microseconds(), r.refunds, r.helped,
		r.need, r.extra, b.flushInterval.Microseconds())
	c.SetFirstKeyPos(3)
	return sentOnce{c}
}

var errReply = errors.New("unexpected reply")

// parse returns the result of a command, and an error for all that the script
// does not return.
func (b *Budget) parse(c sentOnce, r request) (reply, error) {
	values, err := c.Int64Slice()
	if err != nil {
		return reply{}, err
	}
	if len(values) != 2 {
		return reply{}, fmt.Errorf("%w: %d values", errReply, len(values))
	}
	granted, left := values[0], values[1]
	if granted < 0 || granted > r.need+r.extra || left < 0 || left > b.window.Microseconds() {
		return reply{}, fmt.Errorf("%w: %v", errReply, values)
	}
	return reply{granted, time.Duration(left) * time.Microsecond}, nil
}
