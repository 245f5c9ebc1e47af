package redisbudget

import (
	"context"
	"time"
)

// Report is one execution of the script.
type Report struct {
	Successes int64
	Age       time.Duration
	Refunds   int64
	Helped    int64
	Need      int64
	Extra     int64
}

// Exchange executes the script for a host.
func (b *Budget) Exchange(ctx context.Context, host string, r Report) (granted int64, left time.Duration, err error) {
	replies, err := b.exchange(ctx, []request{{b.key(host), r.Successes, r.Age, r.Refunds, r.Helped, r.Need, r.Extra}})
	if err != nil {
		return 0, 0, err
	}
	return replies[0].granted, replies[0].left, nil
}

// Key returns the key of a host in Redis.
func (b *Budget) Key(host string) string { return b.host(host).key }

// Listed returns the number of hosts that b keeps to report them. It is for
// after Close.
func (b *Budget) Listed() int {
	b.active.takeAdded()
	return len(b.active.hosts)
}
