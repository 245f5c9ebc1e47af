package redisbudget_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
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

// A watched budget shows its decisions and its log.
type watched struct {
	*redisbudget.Budget
	log *logBuffer

	mu        sync.Mutex
	decisions []redisbudget.Decision
}

func watch(t testing.TB, cfg redisbudget.Config) *watched {
	w := &watched{log: new(logBuffer)}
	cfg.Logger = w.log.logger()
	cfg.Observe = func(_ context.Context, d redisbudget.Decision) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.decisions = append(w.decisions, d)
	}
	w.Budget = newBudget(t, cfg)
	return w
}

// lastBy reports whether a budget has decided last.
func (w *watched) lastBy(by string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.decisions[len(w.decisions)-1].Shared == (by == shared)
}

// allowed returns how many retries a budget has allowed.
func (w *watched) allowed(by string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, d := range w.decisions {
		if d.Allowed && d.Shared == (by == shared) {
			n++
		}
	}
	return n
}

// requireDecidedBy makes retries until a certain budget decides, and waits for
// the log of that. After an even number of lines, the shared budget decides.
func (w *watched) requireDecidedBy(t testing.TB, by string) {
	t.Helper()
	require.Eventually(t, func() bool {
		w.Withdraw(t.Context(), failed(target))
		return w.lastBy(by) && (by == shared) == (len(w.log.lines())%2 == 0)
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
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			for ctx.Err() == nil {
				began := time.Now()
				budgets[i%4].Withdraw(context.Background(), failed(target))
				assert.Less(t, time.Since(began), 2*patient)
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	allowed := func() (n int) {
		for _, b := range budgets {
			n += b.allowed(shared)
		}
		return n
	}
	requireBursts := func(n int) {
		t.Helper()
		for _, b := range budgets {
			b.requireDecidedBy(t, shared)
		}
		isUsed := func() bool { return allowed() >= 5*n }
		require.Eventually(t, isUsed, 20*time.Second, 5*time.Millisecond)
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

	for _, b := range budgets {
		assert.LessOrEqual(t, b.allowed(local), 5)
		b.log.requireLines(t, 2)
	}
	assert.Equal(t, 10, allowed())
}

// The server is stopped by a signal, so it accepts connections and does not
// answer. Then its memory is full, so reads work and writes do not.
func TestServerFails(t *testing.T) {
	addr := freeAddr(t)
	server := startRedis(t, addr)
	client := newClient(t, addr)
	const timeout = time.Second
	b := watch(t, redisbudget.Config{Client: newClient(t, addr), Timeout: timeout})
	setMemory := func(limit string) {
		require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", limit).Err())
	}
	signal := func(s syscall.Signal) { require.NoError(t, server.Process.Signal(s)) }
	for _, c := range []struct {
		fail, repair func()
		log          string
	}{
		{func() { signal(syscall.SIGSTOP) }, func() { signal(syscall.SIGCONT) }, "level=WARN"},
		{func() { setMemory("1") }, func() { setMemory("0") }, "OOM"},
	} {
		b.requireDecidedBy(t, shared)
		logged := len(b.log.lines())
		c.fail()
		b.requireDecidedBy(t, local)
		assert.Contains(t, b.log.requireLines(t, logged+1)[logged], c.log)
		began := time.Now()
		withdrawn(t, b, target, 1000)
		assert.Less(t, time.Since(began), 10*timeout, "a thousand retries do not wait")
		c.repair()
	}
	b.requireDecidedBy(t, shared)
	assert.LessOrEqual(t, b.allowed(shared), 5, "the server has kept its data")
	assert.LessOrEqual(t, b.allowed(local), 5)
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
			allowed += withdrawn(t, b, host, 3)
			succeed(b, host, 1)
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
		assert.Zero(t, b.allowed(local))
	}

	moveSlot(t, client, nodes, budgets[0].Key(target))
	assert.Equal(t, 5, withdrawn(t, budgets[0], target, 9), "the other node answers")
	assert.Zero(t, budgets[0].allowed(local))

	// A cluster that has lost one of its masters refuses everything.
	nodes[2].kill()
	requireCluster(t, newClient(t, nodes[0].addr), "fail")
	budgets[0].requireDecidedBy(t, local)
	assert.LessOrEqual(t, budgets[0].allowed(local), 5)
}

// moveSlot makes another node the master of a key that does not exist.
func moveSlot(t *testing.T, client *redis.ClusterClient, nodes []*process, key string) {
	t.Helper()
	from, err := client.MasterForKey(t.Context(), key)
	require.NoError(t, err)
	slot, err := client.ClusterKeySlot(t.Context(), key).Result()
	require.NoError(t, err)
	to := nodes[0].addr
	if to == from.Options().Addr {
		to = nodes[1].addr
	}
	node := newClient(t, to)
	id, err := node.Do(t.Context(), "cluster", "myid").Text()
	require.NoError(t, err)
	for _, node := range []*redis.Client{node, from} {
		require.NoError(t, node.Do(t.Context(), "cluster", "setslot", slot, "node", id).Err())
	}
}

// Sentinel makes a replica the master, and the old master is gone.
func TestFailover(t *testing.T) {
	master := freeAddr(t)
	old := startRedis(t, master)
	replica := freeAddr(t) // not the same
	startRedis(t, replica, "--replicaof", host, port(master), "--repl-diskless-sync-delay", "0")
	client := newClient(t, replica)
	replication := func() string { return client.Info(t.Context(), "replication").Val() }
	require.Eventually(t, func() bool {
		return strings.Contains(replication(), "master_link_status:up")
	}, 20*time.Second, 20*time.Millisecond)
	sentinel := freeAddr(t)
	startSentinel(t, sentinel, master)

	failover := closing(t, redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName: "budget", SentinelAddrs: []string{sentinel}}))
	b := watch(t, redisbudget.Config{Client: failover, Timeout: time.Second})
	b.requireDecidedBy(t, shared)
	source, key := newClient(t, master), b.Key(target)
	require.Eventually(t, func() bool {
		want := source.HGetAll(context.Background(), key).Val()
		return len(want) > 0 && maps.Equal(want, client.HGetAll(context.Background(), key).Val())
	}, 20*time.Second, 20*time.Millisecond, "the replica has the charges")
	s := closing(t, redis.NewSentinelClient(&redis.Options{Addr: sentinel}))
	require.Eventually(t, func() bool {
		if strings.Contains(replication(), "role:master") {
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
	withdrawn(t, b, target, 9)
	stats, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	assert.Contains(t, stats, "cmdstat_evalsha:", "the new master decides")
	assert.LessOrEqual(t, b.allowed(shared), 5, "the replica knows the charges")
	assert.LessOrEqual(t, b.allowed(local), 5)
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
		shared, local int
		log           string
	}{
		{"the certificate is trusted", clientTLS, 5, 0, ""},
		{"the certificate is not trusted", &tls.Config{}, 0, 5, "x509: certificate signed by unknown authority"},
		{"without TLS", nil, 0, 5, "level=WARN"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := closing(t, redis.NewClient(&redis.Options{Addr: addr, TLSConfig: c.config}))
			b := watch(t, redisbudget.Config{Client: client, Timeout: patient})
			withdrawn(t, b, target, 9)
			assert.Equal(t, c.shared, b.allowed(shared), "%q", b.log.lines())
			assert.Equal(t, c.local, b.allowed(local))
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
	key := requirePermissions(t, []*redis.Client{admin}, redis.NewClient(&redis.Options{
		Addr: addr, Username: "budget", Password: "secret"}))
	size, err := admin.MemoryUsage(t.Context(), key).Result()
	require.NoError(t, err)
	t.Logf("%d bytes", size)
	assert.Less(t, size, int64(400))
}

// A cluster needs one more permission.
func TestClusterPermissions(t *testing.T) {
	nodes, _ := startCluster(t)
	var admins []*redis.Client
	for _, node := range nodes {
		admins = append(admins, newClient(t, node.addr))
	}
	requirePermissions(t, admins, redis.NewClusterClient(&redis.ClusterOptions{
		Addrs: []string{nodes[0].addr}, Username: "budget", Password: "secret"}), "+cluster|slots")
	for _, admin := range admins {
		stats, err := admin.Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		assert.NotContains(t, stats, "cmdstat_command:", "go-redis asks for the list of all commands")
	}
}

// requirePermissions requires that a Budget needs no more permissions than the
// README names, and some more. It returns the key of a host.
func requirePermissions(
	t *testing.T, admins []*redis.Client, client redis.UniversalClient, more ...any,
) string {
	t.Helper()
	args := []any{"acl", "setuser", "budget", "on", ">secret", "~{shop:*", "+hello",
		"+eval", "+evalsha", "+ping", "+time", "+hmget", "+hset", "+pexpire"}
	for _, admin := range admins {
		require.NoError(t, admin.Do(t.Context(), append(args, more...)...).Err())
	}
	b := watch(t, redisbudget.Config{
		Client: closing(t, client), Namespace: "shop", Timeout: patient})
	for i := range 10 {
		host := fmt.Sprintf("https://%d.test", i)
		withdrawn(t, b, host, 9)
		succeed(b, host, 100)
	}
	require.NoError(t, b.Close())
	assert.Equal(t, 10*5, b.allowed(shared), "%q", b.log.lines())
	return b.Key("https://0.test")
}
