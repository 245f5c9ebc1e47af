package redisbudget_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/redisbudget"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

// These are the durations of a Config without them.
const (
	defaultTimeout = 50 * time.Millisecond
	flushInterval  = 100 * time.Millisecond
)

// A farServer is a Redis without a network, for tests in virtual time. A round
// trip to it takes the same time always, and so does a dial.
type farServer struct {
	*miniredis.Miniredis
	roundTrip time.Duration
	dials     atomic.Int64
	hold      func(context.Context) error // before a dial, if it is not nil
}

func newFarServer(t *testing.T, roundTrip time.Duration) *farServer {
	s := &farServer{Miniredis: miniredis.NewMiniRedis(), roundTrip: roundTrip}
	conn, err := s.Miniredis.Dial() // which starts it
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	t.Cleanup(func() {
		// Close of a client does not end its dials.
		time.Sleep(2 * time.Hour)
		s.Close()
	})
	return s
}

// A farConn delays each Write. A command or a pipeline is one Write.
type farConn struct {
	net.Conn
	roundTrip time.Duration
}

func (c farConn) Write(p []byte) (int, error) {
	time.Sleep(c.roundTrip)
	return c.Conn.Write(p)
}

func (s *farServer) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	s.dials.Add(1)
	if s.hold != nil {
		if err := s.hold(ctx); err != nil {
			return nil, err
		}
	}
	time.Sleep(s.roundTrip)
	conn, err := s.Miniredis.Dial()
	return farConn{conn, s.roundTrip}, err
}

func (s *farServer) client(t *testing.T) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: "192.0.2.1:6379", Dialer: s.dial})
	t.Cleanup(func() { assert.NoError(t, client.Close()) })
	return client
}

// Twenty processes, one after the other, make three requests each to a host
// that is down. With one budget for all, that is five retries, however long a
// round trip to Redis takes.
func TestShortProcessesFarFromRedis(t *testing.T) {
	for _, roundTrip := range []time.Duration{0, 2, 6, 10, 20} {
		roundTrip *= time.Millisecond
		t.Run(roundTrip.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				redisServer := newFarServer(t, roundTrip)
				requests := 0
				base := retrytest.Base(t, retrytest.Always(retrytest.Status(http.StatusServiceUnavailable)))
				for range 20 {
					client := redis.NewClient(&redis.Options{Addr: "192.0.2.1:6379", Dialer: redisServer.dial})
					b := watch(t, redisbudget.Config{Client: client})
					transport, err := httpretry.New(httpretry.Config{Base: base, Policy: httpretry.Policy{
						Budget: b, Backoff: strategies.Constant{Wait: time.Millisecond}}})
					require.NoError(t, err)
					for range 3 {
						requests++
						resp, err := transport.RoundTrip(newRequest(t, target))
						require.NoError(t, err)
						require.NoError(t, resp.Body.Close())
					}
					assert.Empty(t, b.log.lines())
					require.NoError(t, b.Close())
					require.NoError(t, client.Close())
				}
				assert.Len(t, base.Attempts(), requests+5)
			})
		})
	}
}

// Retries at the beginning wait for one connection, for longer than the
// Timeout.
func TestFirstWithdrawalsWaitForTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFarServer(t, 0)
		connect := make(chan struct{})
		s.hold = func(context.Context) error { <-connect; return nil }
		b := watch(t, redisbudget.Config{Client: s.client(t)})
		var wg sync.WaitGroup
		var ended atomic.Int64
		for i := range 5 {
			wg.Go(func() {
				b.Withdraw(t.Context(), failed(fmt.Sprintf("https://%d.test", i)))
				ended.Add(1)
			})
		}
		began := time.Now()
		time.Sleep(9 * defaultTimeout)
		synctest.Wait()
		assert.Zero(t, ended.Load())
		assert.EqualValues(t, 1, s.dials.Load())

		close(connect)
		wg.Wait()
		assert.Equal(t, 9*defaultTimeout, time.Since(began))
		assert.EqualValues(t, 5, b.shared.Load())
		assert.Zero(t, b.local.Load())
		assert.Empty(t, b.log.lines())
	})
}

// Without a connection, retries wait once for a bounded time after New, and the
// ones that follow do not wait.
func TestWaitForTheConnectionIsBounded(t *testing.T) {
	blackHole := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	endless := func(context.Context) error { time.Sleep(time.Hour); return errors.New("late") }
	down := func(context.Context) error { return syscall.ECONNREFUSED }
	for _, c := range []struct {
		name  string
		hold  func(context.Context) error
		begin time.Duration // of the first retry, after New
		want  time.Duration // its wait, at most
	}{
		{"at once", blackHole, 0, 11 * defaultTimeout},
		{"later", blackHole, 4 * defaultTimeout, 7 * defaultTimeout},
		{"after that", blackHole, time.Minute, defaultTimeout},
		{"a dialer that ignores its context", endless, 0, 11 * defaultTimeout},
		{"down", down, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFarServer(t, 0)
				s.hold = c.hold
				b := watch(t, redisbudget.Config{Client: s.client(t)})
				time.Sleep(c.begin)
				began := time.Now()
				var wg sync.WaitGroup
				for i := range 20 {
					wg.Go(func() { b.Withdraw(t.Context(), failed(fmt.Sprintf("https://%d.test", i/10))) })
				}
				wg.Wait()
				assert.Equal(t, c.want, time.Since(began))
				assert.EqualValues(t, 10, b.local.Load(), "as two HostBudgets")
				began = time.Now()
				withdrawn(t, b.Budget, "https://new.test", 1000)
				assert.Zero(t, time.Since(began))
				b.log.requireLines(t, 1)
				assert.NoError(t, b.Close())
			})
		})
	}
}

// The end of a request's context ends its wait, and Close ends all.
func TestWaitForTheConnectionIsCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFarServer(t, 0)
		s.hold = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		b := watch(t, redisbudget.Config{Client: s.client(t)})
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		assert.False(t, b.Withdraw(ctx, failed(target)))
		assert.Equal(t, time.Millisecond, time.Since(began))
		assert.Nil(t, b.decidedBy.Load())

		var wg sync.WaitGroup
		wg.Go(func() { assert.True(t, b.Withdraw(t.Context(), failed(target))) })
		synctest.Wait()
		require.NoError(t, b.Close())
		wg.Wait()
		assert.Equal(t, time.Millisecond, time.Since(began))
		assert.EqualValues(t, 1, b.local.Load())
		assert.Empty(t, b.log.lines())
	})
}

// After a failure, a probe has the time to connect, too.
func TestProbeFarFromRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFarServer(t, 20*time.Millisecond)
		b := watch(t, redisbudget.Config{Client: s.client(t)})
		require.Equal(t, 1, withdrawn(t, b.Budget, target, 1))
		s.Server().SetPreHook(func(p *server.Peer, _ string, _ ...string) bool { p.Close(); return true })
		withdrawn(t, b.Budget, target, 1)
		assert.Equal(t, local, b.decidedBy.Load())
		s.Server().SetPreHook(nil)
		time.Sleep(10 * time.Second)
		withdrawn(t, b.Budget, target, 1)
		assert.Equal(t, shared, b.decidedBy.Load())
		require.NoError(t, b.Close())
	})
}

// A retry that the shared budget has charged for gives nothing back to the local
// one.
func TestSuccessesOfRetriesAreOfOneBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFarServer(t, 0)
		down := func(p *server.Peer, _ string, _ ...string) bool { p.Close(); return true }
		s.Server().SetPreHook(down)
		b := watch(t, redisbudget.Config{Client: s.client(t), Window: year})
		withdrawn(t, b.Budget, target, 10)
		assert.EqualValues(t, 5, b.local.Load())
		for range 5 {
			failAfter(b, failed(target))
		}

		s.Server().SetPreHook(nil)
		time.Sleep(10 * time.Second)
		require.Equal(t, 3, withdrawn(t, b.Budget, target, 3))
		assert.EqualValues(t, 3, b.shared.Load())
		for range 3 {
			succeedAfter(b, failed(target))
		}

		s.Server().SetPreHook(down)
		time.Sleep(10 * time.Second) // for a report that fails
		assert.Zero(t, withdrawn(t, b.Budget, target, 10))
		assert.Equal(t, local, b.decidedBy.Load())
		require.NoError(t, b.Close())
	})
}

// Close does not wait for a probe that cannot connect.
func TestCloseDuringAProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFarServer(t, 0)
		probing := make(chan struct{})
		s.hold = func(ctx context.Context) error {
			if s.dials.Load() <= 2 { // those of New and Withdraw
				return syscall.ECONNREFUSED
			}
			close(probing)
			<-ctx.Done()
			return ctx.Err()
		}
		b := watch(t, redisbudget.Config{Client: s.client(t)})
		synctest.Wait()
		withdrawn(t, b.Budget, target, 1)
		<-probing
		began := time.Now()
		require.NoError(t, b.Close())
		assert.Zero(t, time.Since(began))
	})
}

// In a cluster, there is a connection to each master.
func TestFirstWithdrawalsInACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := map[string]*farServer{}
		var slots []any
		for i, addr := range []string{"192.0.2.1:6379", "192.0.2.2:6379", "192.0.2.3:6379"} {
			nodes[addr] = newFarServer(t, 20*time.Millisecond)
			slots = append(slots, []any{i * 5462, min(i*5462+5461, 16383), []any{addr[:len(addr)-5], 6379}})
		}
		for _, node := range nodes {
			node.Server().SetPreHook(func(p *server.Peer, name string, _ ...string) bool {
				if name == "CLUSTER" {
					writeReply(p, slots)
				}
				return name == "CLUSTER"
			})
		}
		client := redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"192.0.2.1:6379"},
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return nodes[addr].dial(ctx, network, addr)
			},
		})
		defer client.Close()
		b := watch(t, redisbudget.Config{Client: client})
		for i := range uint32(10) {
			assert.True(t, b.Withdraw(t.Context(), failed(fmt.Sprintf("https://%08x.test", i*0x9e3779b9))))
		}
		assert.EqualValues(t, 10, b.shared.Load())
		for addr, node := range nodes {
			assert.NotEmpty(t, node.Keys(), addr)
		}
		require.NoError(t, b.Close())
	})
}

// writeReply writes numbers, strings and lists of them.
func writeReply(p *server.Peer, v any) {
	switch v := v.(type) {
	case int:
		p.WriteInt(v)
	case string:
		p.WriteBulk(v)
	case []any:
		p.WriteLen(len(v))
		for _, e := range v {
			writeReply(p, e)
		}
	}
}

// Retries to several hosts at once need several connections. The Timeout is
// enough to open them if it is eight round trips.
func TestRetriesToSeveralHosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFarServer(t, defaultTimeout/8)
		b := watch(t, redisbudget.Config{Client: s.client(t)})
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { assert.True(t, b.Withdraw(t.Context(), failed(fmt.Sprintf("https://%d.test", i)))) })
		}
		wg.Wait()
		assert.EqualValues(t, 10, b.shared.Load())
		assert.EqualValues(t, 10, s.dials.Load())
	})
}
