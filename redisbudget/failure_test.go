package redisbudget_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/redisbudget"
)

// The budgets that decide.
const (
	shared = "shared"
	local  = "local"
)

func decidedBy(d redisbudget.Decision) string {
	if d.Shared {
		return shared
	}
	return local
}

// A watched budget shows which budget decides.
type watched struct {
	*redisbudget.Budget
	log           *logBuffer
	shared, local atomic.Int64 // retries that each budget has allowed
	decidedBy     atomic.Value // the last decision
}

func watch(t testing.TB, cfg redisbudget.Config) *watched {
	w := &watched{log: new(logBuffer)}
	cfg.Logger = w.log.logger()
	cfg.Observe = func(_ context.Context, d redisbudget.Decision) {
		w.decidedBy.Store(decidedBy(d))
		switch {
		case !d.Allowed:
		case d.Shared:
			w.shared.Add(1)
		default:
			w.local.Add(1)
		}
	}
	w.Budget = newBudget(t, cfg)
	return w
}

// requireDecidedBy makes retries until a certain budget decides, and waits for
// the log of that. The goroutine that changes the state logs it later.
func (w *watched) requireDecidedBy(t testing.TB, by string) {
	t.Helper()
	last := map[string]string{shared: "level=INFO", local: "level=WARN"}[by]
	require.Eventually(t, func() bool {
		w.Withdraw(t.Context(), failed(target))
		lines := w.log.lines()
		if w.decidedBy.Load() != by || len(lines) == 0 {
			return w.decidedBy.Load() == by && by == shared
		}
		return strings.Contains(lines[len(lines)-1], last)
	}, time.Minute, 5*time.Millisecond, "decided by %s", by)
}

// A server is killed and started again while goroutines of several budgets make
// retries to a host that is down.
func TestServerRestarts(t *testing.T) {
	addr := freeAddr(t)
	server := startRedis(t, addr)
	var budgets []*watched
	for range 4 {
		budgets = append(budgets, watch(t, redisbudget.Config{Client: newClient(t, addr), Timeout: patient}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	var slowest atomic.Int64
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				budgets[i%4].Withdraw(context.Background(), failed(target))
				if took := int64(time.Since(began)); took > slowest.Load() {
					slowest.Store(took)
				}
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	requireBursts := func(n int64) {
		t.Helper()
		for _, b := range budgets {
			b.requireDecidedBy(t, shared)
		}
		require.Eventually(t, func() bool {
			var allowed int64
			for _, b := range budgets {
				allowed += b.shared.Load()
			}
			return allowed >= 5*n
		}, 20*time.Second, 5*time.Millisecond)
	}
	requireBursts(1)
	server.kill()
	for _, b := range budgets {
		b.requireDecidedBy(t, local)
	}
	startRedis(t, addr)
	requireBursts(2) // the server has lost its data
	cancel()
	wg.Wait()

	var byShared int64
	for _, b := range budgets {
		byShared += b.shared.Load()
		assert.LessOrEqual(t, b.local.Load(), int64(5))
		b.log.requireLines(t, 2)
	}
	assert.EqualValues(t, 10, byShared)
	t.Logf("the longest wait: %v", time.Duration(slowest.Load()))
	assert.Less(t, time.Duration(slowest.Load()), 2*patient)
}

// A server that is stopped by a signal accepts connections and does not answer.
func TestServerHangs(t *testing.T) {
	addr := freeAddr(t)
	server := startRedis(t, addr)
	b := watch(t, redisbudget.Config{Client: newClient(t, addr), Timeout: 300 * time.Millisecond})
	b.requireDecidedBy(t, shared)
	require.NoError(t, server.Process.Signal(syscall.SIGSTOP))
	b.requireDecidedBy(t, local)
	require.NoError(t, server.Process.Signal(syscall.SIGCONT))
	b.requireDecidedBy(t, shared)
	assert.LessOrEqual(t, b.shared.Load(), int64(5), "the server has kept its data")
	assert.LessOrEqual(t, b.local.Load(), int64(5))
}

// Memory is full. Reads work, writes do not.
func TestServerIsOutOfMemory(t *testing.T) {
	addr := freeAddr(t)
	startRedis(t, addr)
	client := newClient(t, addr)
	b := watch(t, redisbudget.Config{Client: client, Timeout: patient})
	b.requireDecidedBy(t, shared)
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	b.requireDecidedBy(t, local)
	assert.Contains(t, b.log.requireLines(t, 1)[0], "OOM")
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	b.requireDecidedBy(t, shared)
	assert.LessOrEqual(t, b.shared.Load(), int64(5))
}

// The network to Redis is cut, slow, does not deliver, or resets connections.
func TestNetworkFails(t *testing.T) {
	addr := freeAddr(t)
	startRedis(t, addr)
	network := startNetwork(t, addr)
	const timeout = 300 * time.Millisecond
	b := watch(t, redisbudget.Config{Client: newClient(t, network.addr), Timeout: timeout})
	for _, state := range []string{"cut", "slow", "black hole", "reset"} {
		b.requireDecidedBy(t, shared)
		logged := len(b.log.lines())
		network.become(state)
		b.requireDecidedBy(t, local)
		logged++
		b.log.requireLines(t, logged)
		began := time.Now()
		withdrawn(t, b.Budget, target, 1000)
		assert.Less(t, time.Since(began), 100*timeout, "%s: a thousand retries do not wait", state)
		network.become("")
	}
	b.requireDecidedBy(t, shared)
	assert.LessOrEqual(t, b.shared.Load(), int64(5), "the server was there all the time, and the host was down")
	assert.LessOrEqual(t, b.local.Load(), int64(5))
}

func TestCluster(t *testing.T) {
	nodes, client := startCluster(t)
	var budgets []*watched
	for range 3 {
		budgets = append(budgets, watch(t, redisbudget.Config{Client: client, Window: year, Timeout: patient}))
	}
	masters, hosts := map[string]bool{}, map[string]bool{}
	for i := range uint32(30) {
		host, allowed := fmt.Sprintf("https://%08x.test", i*0x9e3779b9), 0
		hosts[host] = true
		master, err := client.MasterForKey(t.Context(), budgets[0].Key(host))
		require.NoError(t, err)
		masters[master.Options().Addr] = true
		for _, b := range budgets {
			allowed += withdrawn(t, b.Budget, host, 3)
			succeed(b.Budget, host, 1)
		}
		assert.Equal(t, 5, allowed, host)
	}
	assert.Len(t, masters, 3)
	// One report has hosts of all nodes.
	for host := range hosts {
		require.Eventually(t, func() bool {
			successes, _ := counts(t, client, budgets[0].Key(host))
			return successes == len(budgets)
		}, 20*time.Second, 10*time.Millisecond, host)
	}
	for _, b := range budgets {
		assert.Empty(t, b.log.lines())
		assert.Zero(t, b.local.Load())
	}

	moveSlot(t, client, budgets[0].Key(target))
	assert.Equal(t, 5, withdrawn(t, budgets[0].Budget, target, 9), "the other node answers")
	assert.Zero(t, budgets[0].local.Load())

	// A cluster that has lost one of its masters refuses everything.
	nodes[2].kill()
	requireCluster(t, newClient(t, nodes[0].addr), "fail")
	budgets[0].requireDecidedBy(t, local)
	assert.LessOrEqual(t, budgets[0].local.Load(), int64(5))
}

// moveSlot makes another node the master of a key that does not exist.
func moveSlot(t *testing.T, client *redis.ClusterClient, key string) {
	t.Helper()
	from, err := client.MasterForKey(t.Context(), key)
	require.NoError(t, err)
	slot, err := client.ClusterKeySlot(t.Context(), key).Result()
	require.NoError(t, err)
	var to *redis.Client
	var mu sync.Mutex
	require.NoError(t, client.ForEachMaster(t.Context(), func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		if c.Options().Addr != from.Options().Addr {
			to = c
		}
		return nil
	}))
	id, err := to.Do(t.Context(), "cluster", "myid").Text()
	require.NoError(t, err)
	for _, node := range []*redis.Client{to, from} {
		require.NoError(t, node.Do(t.Context(), "cluster", "setslot", slot, "node", id).Err())
	}
}

// Sentinel makes a replica the master, and the old master is gone.
func TestFailover(t *testing.T) {
	master := freeAddr(t)
	old := startRedis(t, master)
	replica := freeAddr(t) // not the same
	host, port, err := net.SplitHostPort(master)
	require.NoError(t, err)
	startRedis(t, replica, "--replicaof", host, port, "--repl-diskless-sync-delay", "0")
	client := newClient(t, replica)
	require.Eventually(t, func() bool {
		info, err := client.Info(context.Background(), "replication").Result()
		return err == nil && strings.Contains(info, "master_link_status:up")
	}, 20*time.Second, 20*time.Millisecond)
	sentinel := freeAddr(t)
	startSentinel(t, sentinel, master)

	failover := redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "budget", SentinelAddrs: []string{sentinel}})
	t.Cleanup(func() { require.NoError(t, failover.Close()) })
	b := watch(t, redisbudget.Config{Client: failover, Timeout: time.Second})
	b.requireDecidedBy(t, shared)
	source, key := newClient(t, master), b.Key(target)
	require.Eventually(t, func() bool {
		want := source.HGetAll(context.Background(), key).Val()
		return len(want) > 0 && maps.Equal(want, client.HGetAll(context.Background(), key).Val())
	}, 20*time.Second, 20*time.Millisecond, "the replica has the charges")
	s := redis.NewSentinelClient(&redis.Options{Addr: sentinel})
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.Eventually(t, func() bool {
		info, err := client.Info(context.Background(), "replication").Result()
		if err == nil && strings.Contains(info, "role:master") {
			return true
		}
		// This fails until the sentinel knows the replica, and while it works.
		// A sentinel that was slow has given up.
		_ = s.Failover(context.Background(), "budget").Err()
		return false
	}, 60*time.Second, 100*time.Millisecond)
	old.kill()
	// The local budget decides meanwhile, unless the sentinel has told the
	// client of the new master before.
	b.requireDecidedBy(t, shared)
	withdrawn(t, b.Budget, target, 9)
	stats, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	assert.Contains(t, stats, "cmdstat_evalsha:", "the new master decides")
	assert.LessOrEqual(t, b.shared.Load(), int64(5), "the replica knows the charges")
	assert.LessOrEqual(t, b.local.Load(), int64(5))
}

// Own connections have the TLS configuration of the Client. Without one that
// the server accepts, the local budget decides.
func TestTLS(t *testing.T) {
	https := httptest.NewTLSServer(nil)
	https.Close() // its certificate is for 127.0.0.1
	clientTLS := https.Client().Transport.(*http.Transport).TLSClientConfig
	addr := freeAddr(t)
	startRedis(t, addr, tlsOptions(t, addr, https.TLS)...)
	for _, c := range []struct {
		name          string
		config        *tls.Config
		shared, local int64
		log           string
	}{
		{"the certificate is trusted", clientTLS, 5, 0, ""},
		{"the certificate is not trusted", &tls.Config{}, 0, 5, "x509: certificate signed by unknown authority"},
		{"without TLS", nil, 0, 5, "level=WARN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: addr, TLSConfig: c.config})
			defer client.Close()
			b := watch(t, redisbudget.Config{Client: client, Timeout: patient})
			assert.Equal(t, 5, withdrawn(t, b.Budget, target, 9))
			assert.Equal(t, c.shared, b.shared.Load(), "%q", b.log.lines())
			assert.Equal(t, c.local, b.local.Load())
			if c.log != "" {
				assert.Contains(t, b.log.requireLines(t, 1)[0], c.log)
			}
		})
	}
}

// The README names the commands that a user of Redis has to be allowed, and the
// memory that a host takes.
func TestServerPermissions(t *testing.T) {
	addr := freeAddr(t)
	startRedis(t, addr)
	admin := newClient(t, addr)
	addUser(t, admin)
	client := redis.NewClient(&redis.Options{Addr: addr, Username: "budget", Password: "secret"})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	b := watch(t, redisbudget.Config{Client: client, Namespace: "shop", Timeout: patient})
	assert.Equal(t, 5, withdrawn(t, b.Budget, target, 9))
	succeed(b.Budget, target, 100)
	require.NoError(t, b.Close())
	assert.Zero(t, b.local.Load(), "%q", b.log.lines())
	size, err := admin.MemoryUsage(t.Context(), b.Key(target)).Result()
	require.NoError(t, err)
	t.Logf("%d bytes", size)
	assert.Less(t, size, int64(400))
}

// A cluster needs one more permission.
func TestClusterPermissions(t *testing.T) {
	nodes, _ := startCluster(t)
	for _, node := range nodes {
		addUser(t, newClient(t, node.addr), "+cluster|slots")
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{nodes[0].addr}, Username: "budget", Password: "secret"})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	b := watch(t, redisbudget.Config{Client: client, Namespace: "shop", Timeout: patient})
	for i := range 10 {
		host := fmt.Sprintf("https://%d.test", i)
		assert.Equal(t, 5, withdrawn(t, b.Budget, host, 9))
		succeed(b.Budget, host, 1)
	}
	require.NoError(t, b.Close())
	assert.Zero(t, b.local.Load(), "%q", b.log.lines())
	for _, node := range nodes {
		stats, err := newClient(t, node.addr).Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		assert.NotContains(t, stats, "cmdstat_command:", "go-redis asks for the list of all commands")
	}
}

// addUser adds a user with the permissions that the README names.
func addUser(t *testing.T, admin *redis.Client, more ...any) {
	t.Helper()
	args := []any{"acl", "setuser", "budget", "on", ">secret", "~{shop:*", "+hello",
		"+eval", "+evalsha", "+ping", "+time", "+hmget", "+hset", "+pexpire"}
	require.NoError(t, admin.Do(t.Context(), append(args, more...)...).Err())
}
