package redisbudget_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// redisServer returns the path of the program that REDIS_SERVER names, or else
// of redis-server or valkey-server. Without one the test is skipped, but not
// where everything is meant to run.
func redisServer(t testing.TB) string {
	t.Helper()
	if name := os.Getenv("REDIS_SERVER"); name != "" {
		path, err := exec.LookPath(name)
		require.NoError(t, err, "REDIS_SERVER: %q: want a program", name)
		return path
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatal("redis-server is not installed: run redisbudget/install.sh")
	}
	t.Skip("redis-server is not installed: run redisbudget/install.sh")
	return ""
}

// A process is a program that listens at addr, until the end of the test.
type process struct {
	*exec.Cmd
	addr   string
	exited chan struct{}
}

func start(t testing.TB, addr, path string, args ...string) *process {
	t.Helper()
	p := &process{exec.Command(path, args...), addr, make(chan struct{})}
	p.Dir = t.TempDir()
	log, err := os.Create(filepath.Join(p.Dir, "log"))
	require.NoError(t, err)
	defer log.Close()
	p.Stdout, p.Stderr = log, log
	require.NoError(t, p.Start())
	go func() {
		defer close(p.exited)
		_ = p.Wait() // how it ended shows in its log
	}()
	t.Cleanup(func() {
		p.kill()
		if text, err := os.ReadFile(log.Name()); t.Failed() && err == nil {
			t.Logf("the end of the log of %s:\n%s", filepath.Base(path), text[max(0, len(text)-4096):])
		}
	})
	require.Eventually(t, func() bool {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			return false
		}
		return conn.Close() == nil
	}, 20*time.Second, 10*time.Millisecond, "%s does not listen at %s", path, addr)
	select {
	case <-p.exited:
		require.Fail(t, "the program has ended", "another one may listen at %s", addr)
	default:
	}
	return p
}

func (p *process) kill() {
	_ = p.Process.Signal(syscall.SIGCONT)
	_ = p.Process.Kill()
	<-p.exited
}

// freeAddr returns an address to listen at, with a port that the system does
// not give to outgoing connections meanwhile. The bus of a cluster has the
// port that is 10000 higher.
func freeAddr(t testing.TB) string {
	t.Helper()
	for range 100 {
		port := 10000 + mathrand.IntN(10000)
		l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, port))
		if err != nil {
			continue
		}
		defer l.Close()
		if bus, err := net.Listen("tcp", fmt.Sprintf("%s:%d", host, port+10000)); err == nil {
			defer bus.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free port")
	return ""
}

// All servers listen on host.
const host = "127.0.0.1"

func port(addr string) string { return addr[len(host)+1:] }

// startRedis starts a server at addr.
func startRedis(t testing.TB, addr string, args ...string) *process {
	t.Helper()
	all := []string{"--bind", host, "--port", port(addr), "--save", "", "--appendonly", "no"}
	return start(t, addr, redisServer(t), append(all, args...)...)
}

// tlsOptions returns the options of a server that speaks only TLS at addr.
func tlsOptions(t testing.TB, addr string, cfg *tls.Config) []string {
	t.Helper()
	pair := cfg.Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	write := func(kind string, der []byte) string {
		file := filepath.Join(t.TempDir(), "pem")
		text := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
		require.NoError(t, os.WriteFile(file, text, 0o600))
		return file
	}
	certFile, keyFile := write("CERTIFICATE", pair.Certificate[0]), write("PRIVATE KEY", key)
	return []string{"--port", "0", "--tls-port", port(addr), "--tls-auth-clients", "no",
		"--tls-cert-file", certFile, "--tls-key-file", keyFile, "--tls-ca-cert-file", certFile}
}

// startCluster starts a cluster of three masters.
func startCluster(t testing.TB) (nodes []*process, _ *redis.ClusterClient) {
	t.Helper()
	var addrs []string
	for i := range 3 {
		addrs = append(addrs, freeAddr(t))
		nodes = append(nodes, startRedis(t, addrs[i], "--cluster-enabled", "yes", "--cluster-node-timeout", "3000"))
		node := newClient(t, addrs[i])
		first, last := i*16384/3, (i+1)*16384/3-1
		require.NoError(t, node.ClusterAddSlotsRange(t.Context(), first, last).Err())
		require.NoError(t, node.Do(t.Context(), "cluster", "set-config-epoch", i+1).Err())
		if i > 0 {
			require.NoError(t, node.ClusterMeet(t.Context(), host, port(addrs[0])).Err())
		}
	}
	for _, addr := range addrs {
		requireCluster(t, newClient(t, addr), "ok")
	}
	return nodes, closing(t, redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs}))
}

// requireCluster waits until a node knows three masters, and that the cluster
// is ok or has failed.
func requireCluster(t testing.TB, node *redis.Client, state string) {
	t.Helper()
	require.Eventually(t, func() bool {
		info, err := node.ClusterInfo(context.Background()).Result()
		return err == nil && strings.Contains(info, "cluster_state:"+state) && strings.Contains(info, "cluster_size:3")
	}, 20*time.Second, 20*time.Millisecond)
}

// startSentinel starts a sentinel for a master with the name "budget".
func startSentinel(t testing.TB, addr, master string) {
	t.Helper()
	config := filepath.Join(t.TempDir(), "sentinel.conf") // which the sentinel rewrites
	text := fmt.Sprintf("bind %s\nport %s\nsentinel monitor budget %s %s 1\nsentinel down-after-milliseconds budget 2000\n",
		host, port(addr), host, port(master))
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	start(t, addr, redisServer(t), config, "--sentinel")
}
