package redisbudget_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
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

	"github.com/seed421102f4/httpretry/redisbudget"
	"github.com/seed421102f4/httpretry/retrytest"
)

// These are the durations of a Config without them.
const (
	defaultTimeout = 50 * time.Millisecond
	flushInterval  = 100 * time.Millisecond
)

// A farServer is a Redis without a network, for tests in virtual time. A round
// trip to it takes the same time always, and so does a dial.
type farServer struct {
	*fake
	roundTrip time.Duration
	dials     atomic.Int64
	hold      func(context.Context) error // before a dial, if it is not nil
}

// far returns a test in virtual time, with a new server.
func far(roundTrip time.Duration, test func(*testing.T, *farServer)) func(*testing.T) {
	return func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { test(t, newFarServer(t, roundTrip)) })
	}
}

// forBothBudgets runs a test with a Redis that works, and with one that is down.
func forBothBudgets(t *testing.T, test func(t *testing.T, s *farServer, by string)) {
	for by, hold := range map[string]func(context.Context) error{shared: nil, local: down} {
		t.Run(by, far(0, func(t *testing.T, s *farServer) {
			s.hold = hold
			test(t, s, by)
		}))
	}
}

func newFarServer(t *testing.T, roundTrip time.Duration) *farServer {
	m := miniredis.NewMiniRedis()
	conn, err := m.Dial() // which starts it
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	s := &farServer{fake: fakeOf(m), roundTrip: roundTrip}
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

// down is a dial to a server that does not listen, and blackHole to one that
// does not answer.
func down(context.Context) error          { return syscall.ECONNREFUSED }
func blackHole(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func (s *farServer) client(t *testing.T) *redis.Client {
	return closing(t, redis.NewClient(&redis.Options{Addr: "192.0.2.1:6379", Dialer: s.dial}))
}

// watch returns a Budget whose Close has no error.
func (s *farServer) watch(t *testing.T, cfg redisbudget.Config) *watched {
	cfg.Client = s.client(t)
	return closing(t, watch(t, cfg))
}

// Twenty processes, one after the other, make three requests each to a host
// that is down. With one budget for all, that is five retries, however long a
// round trip to Redis takes.
func TestShortProcessesFarFromRedis(t *testing.T) {
	for _, roundTrip := range []time.Duration{0, 2, 6, 10, 20} {
		roundTrip *= time.Millisecond
		t.Run(roundTrip.String(), far(roundTrip, func(t *testing.T, s *farServer) {
			base := retrytest.Base(t, retrytest.Always(retrytest.Status(http.StatusServiceUnavailable)))
			for range 20 {
				b := s.watch(t, redisbudget.Config{})
				transport := newTransport(t, b, base)
				for range 3 {
					resp, err := transport.RoundTrip(newRequest(t, target))
					require.NoError(t, err)
					require.NoError(t, resp.Body.Close())
				}
				assert.Empty(t, b.log.lines())
				require.NoError(t, b.Close())
			}
			assert.Len(t, base.Attempts(), 20*3+5)
		}))
	}
}

// Retries at the beginning wait for one connection, for longer than the
// Timeout.
func TestFirstWithdrawalsWaitForTheConnection(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		connect := make(chan struct{})
		s.hold = func(context.Context) error { <-connect; return nil }
		b := s.watch(t, redisbudget.Config{})
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
		assert.Equal(t, 5, b.allowed(shared))
		assert.Empty(t, b.log.lines())
	})(t)
}

// Without a connection, retries wait once for a bounded time after New, and the
// ones that follow do not wait.
func TestWaitForTheConnectionIsBounded(t *testing.T) {
	endless := func(context.Context) error { time.Sleep(time.Hour); return errors.New("late") }
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
		t.Run(c.name, far(0, func(t *testing.T, s *farServer) {
			s.hold = c.hold
			b := s.watch(t, redisbudget.Config{})
			time.Sleep(c.begin)
			began := time.Now()
			var wg sync.WaitGroup
			for i := range 20 {
				wg.Go(func() { b.Withdraw(t.Context(), failed(fmt.Sprintf("https://%d.test", i/10))) })
			}
			wg.Wait()
			assert.Equal(t, c.want, time.Since(began))
			assert.Equal(t, 10, b.allowed(local), "as two HostBudgets")
			began = time.Now()
			withdrawn(t, b, "https://new.test", 1000)
			assert.Zero(t, time.Since(began))
			b.log.requireLines(t, 1)
		}))
	}
}

// The end of a request's context ends its wait, and Close ends all.
func TestWaitForTheConnectionIsCanceled(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		s.hold = blackHole
		b := s.watch(t, redisbudget.Config{})
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		assert.False(t, b.Withdraw(ctx, failed(target)))
		assert.Equal(t, time.Millisecond, time.Since(began))
		assert.Empty(t, b.decisions)

		var wg sync.WaitGroup
		wg.Go(func() { assert.True(t, b.Withdraw(t.Context(), failed(target))) })
		synctest.Wait()
		require.NoError(t, b.Close())
		wg.Wait()
		assert.Equal(t, time.Millisecond, time.Since(began))
		assert.Equal(t, 1, b.allowed(local))
		assert.Empty(t, b.log.lines())
	})(t)
}

// After a failure, a probe has the time to connect, too. It does not wait for
// the FlushInterval.
func TestProbeFarFromRedis(t *testing.T) {
	far(20*time.Millisecond, func(t *testing.T, s *farServer) {
		b := s.watch(t, quiet)
		require.Equal(t, 1, withdrawn(t, b, target, 1))
		s.Server().SetPreHook(hangUp)
		withdrawn(t, b, target, 1)
		assert.True(t, b.lastBy(local))
		s.Server().SetPreHook(nil)
		time.Sleep(10 * time.Second)
		withdrawn(t, b, target, 1)
		assert.True(t, b.lastBy(shared))
	})(t)
}

// hangUp closes each connection.
func hangUp(p *server.Peer, _ string, _ ...string) bool { p.Close(); return true }

// A retry that the shared budget has charged for gives nothing back to the local
// one.
func TestSuccessesOfRetriesAreOfOneBudget(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		s.Server().SetPreHook(hangUp)
		b := s.watch(t, redisbudget.Config{Window: year})
		withdrawn(t, b, target, 10)
		assert.Equal(t, 5, b.allowed(local))
		for range 5 {
			failAfter(b, failed(target))
		}

		s.Server().SetPreHook(nil)
		time.Sleep(10 * time.Second)
		withdrawn(t, b, target, 3)
		assert.Equal(t, 3, b.allowed(shared))
		for range 3 {
			succeedAfter(b, failed(target))
		}

		s.Server().SetPreHook(hangUp)
		time.Sleep(10 * time.Second) // for a report that fails
		assert.Zero(t, withdrawn(t, b, target, 10))
		assert.True(t, b.lastBy(local))
	})(t)
}

// Close does not wait for a probe that cannot connect.
func TestCloseDuringAProbe(t *testing.T) {
	far(0, func(t *testing.T, s *farServer) {
		probing := make(chan struct{})
		s.hold = func(ctx context.Context) error {
			if s.dials.Load() <= 2 { // those of New and Withdraw
				return syscall.ECONNREFUSED
			}
			close(probing)
			return blackHole(ctx)
		}
		b := s.watch(t, redisbudget.Config{})
		synctest.Wait()
		withdrawn(t, b, target, 1)
		<-probing
		began := time.Now()
		require.NoError(t, b.Close())
		assert.Zero(t, time.Since(began))
	})(t)
}

// In a cluster, there is a connection to each master.
func TestFirstWithdrawalsInACluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		nodes := map[string]*farServer{}
		var slots strings.Builder
		slots.WriteString("*3\r\n")
		for i, addr := range []string{"192.0.2.1:6379", "192.0.2.2:6379", "192.0.2.3:6379"} {
			nodes[addr] = newFarServer(t, 20*time.Millisecond)
			slots.WriteString(fmt.Sprintf("*3\r\n:%d\r\n:%d\r\n*2\r\n+%s\r\n:6379\r\n",
				i*5462, min(i*5462+5461, 16383), addr[:len(addr)-5]))
		}
		for _, node := range nodes {
			node.Server().SetPreHook(func(p *server.Peer, name string, _ ...string) bool {
				if name == "CLUSTER" {
					p.WriteRaw(slots.String())
				}
				return name == "CLUSTER"
			})
		}
		client := closing(t, redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{"192.0.2.1:6379"},
			Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
				return nodes[addr].dial(ctx, network, addr)
			},
		}))
		b := closing(t, watch(t, redisbudget.Config{Client: client}))
		for i := range uint32(10) {
			b.Withdraw(t.Context(), failed(fmt.Sprintf("https://%08x.test", i*0x9e3779b9)))
		}
		assert.Equal(t, 10, b.allowed(shared))
		for addr, node := range nodes {
			assert.NotEmpty(t, node.Keys(), addr)
		}
	})
}

// Retries to several hosts at once need several connections. The Timeout is
// enough to open them if it is eight round trips.
func TestRetriesToSeveralHosts(t *testing.T) {
	far(defaultTimeout/8, func(t *testing.T, s *farServer) {
		b := s.watch(t, redisbudget.Config{})
		var wg sync.WaitGroup
		for i := range 10 {
			wg.Go(func() { b.Withdraw(t.Context(), failed(fmt.Sprintf("https://%d.test", i))) })
		}
		wg.Wait()
		assert.Equal(t, 10, b.allowed(shared))
		assert.EqualValues(t, 10, s.dials.Load())
	})(t)
}
