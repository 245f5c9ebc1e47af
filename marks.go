package httpretry

import "context"

// marks is all that this package puts into contexts, under one key, so that a
// request costs one look-up. A context's marks do not change: one derived from
// it has marks of its own.
type marks struct {
	policy     *policy  // WithPolicy
	idempotent bool     // WithIdempotent
	inbound    *inbound // Middleware
	attempt    *attempt // what sends the request that ctx is of
}

type marksKey struct{}

func marksOf(ctx context.Context) marks {
	if m, ok := ctx.Value(marksKey{}).(*marks); ok {
		return *m
	}
	return marks{}
}

func (m marks) in(ctx context.Context) context.Context {
	return context.WithValue(ctx, marksKey{}, &m)
}
