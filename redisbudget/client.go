package redisbudget

import (
	"context"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ownClient returns a client with connections of its own for the server of c,
// which sends nothing twice and obeys deadlines, and true. For a type that it
// does not know, it returns c and false.
func ownClient(c redis.UniversalClient, timeout time.Duration) (redis.UniversalClient, bool) {
	switch c := c.(type) {
	case *redis.Client:
		return redis.NewClient(strict(c.Options(), timeout)), true
	case *redis.ClusterClient:
		o := *c.Options()
		newClient := o.NewClient
		o.NewClient = func(node *redis.Options) *redis.Client { return newClient(strict(node, timeout)) }
		o.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
		o.MaxRetries = -1
		// This is for a server that redirects to another one. Commands that
		// were executed are never sent again (see sentOnce).
		o.MaxRedirects = 2
		o.MinRetryBackoff, o.MaxRetryBackoff = -1, -1
		o.ContextTimeoutEnabled = true
		// With these policies, the client asks for the list of all commands,
		// for up to five seconds. If COMMAND is not permitted, it asks before
		// each command. The key of the script is at a known place anyway.
		o.DisableRoutingPolicies = true
		// The client for the cluster reads and writes pipelines itself.
		o.ReadTimeout, o.WriteTimeout = timeout, timeout
		// Only a master executes the script.
		o.ReadOnly, o.RouteByLatency, o.RouteRandomly = false, false, false
		own := redis.NewClusterClient(&o)
		own.SetCommandInfoResolver(nil) // the same for pipelines
		return own, true
	}
	return c, false
}

// strict returns a copy of o without retries and with short timeouts.
func strict(o *redis.Options, timeout time.Duration) *redis.Options {
	s := *o
	s.MaxRetries = -1
	s.DialerRetries = 1
	s.ContextTimeoutEnabled = true
	s.ReadTimeout, s.WriteTimeout, s.PoolTimeout = timeout, timeout, timeout
	// No command waits that long, but the next one can use the connection.
	s.DialTimeout = max(timeout, time.Second)
	s.MinIdleConns = 0
	s.PipelinePoolSize = -1
	s.ClientSideCache, s.ClientSideCacheConfig = nil, nil
	s.MaintNotificationsConfig = &maintnotifications.Config{Mode: maintnotifications.ModeDisabled}
	return &s
}

// connectTimeout returns how long connecting may take. In a cluster with TLS it
// takes up to ten round trips, and each may take as long as the timeout.
func (s *settings) connectTimeout() time.Duration { return 10 * s.timeout }

// connect opens a connection to the server, or to each master of a cluster, and
// leaves it in the pool. If the pool has one, it opens none.
func (b *Budget) connect(ctx context.Context) error {
	if cluster, ok := b.client.(*redis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, master *redis.Client) error {
			return master.Ping(ctx).Err()
		})
	}
	return b.client.Ping(ctx).Err()
}
