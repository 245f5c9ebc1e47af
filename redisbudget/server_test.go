package redisbudget_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
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
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		defer l.Close()
		if bus, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+10000)); err == nil {
			defer bus.Close()
			return l.Addr().String()
		}
	}
	t.Fatal("no free port")
	return ""
}

// startRedis starts a server at addr.
func startRedis(t testing.TB, addr string, args ...string) *process {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	args = append([]string{"--bind", host, "--port", port, "--save", "", "--appendonly", "no"}, args...)
	return start(t, addr, redisServer(t), args...)
}

// tlsOptions returns the options of a server that speaks only TLS at addr.
func tlsOptions(t testing.TB, addr string, cfg *tls.Config) []string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
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
	return []string{"--port", "0", "--tls-port", port, "--tls-auth-clients", "no",
		"--tls-cert-file", certFile, "--tls-key-file", keyFile, "--tls-ca-cert-file", certFile}
}

// startCluster starts a cluster of three masters.
func startCluster(t testing.TB) (nodes []*process, client *redis.ClusterClient) {
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
			host, port, err := net.SplitHostPort(addrs[0])
			require.NoError(t, err)
			require.NoError(t, node.ClusterMeet(t.Context(), host, port).Err())
		}
	}
	for _, addr := range addrs {
		requireCluster(t, newClient(t, addr), "ok")
	}
	client = redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return nodes, client
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

// A network is a way to a server that fails as its state says. A change of the
// state closes all connections.
type network struct {
	addr  string
	mu    sync.Mutex
	state string // "" is a network that works
	conns []*net.TCPConn
}

func startNetwork(t testing.TB, upstream string) *network {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	n := &network{addr: listener.Addr().String()}
	var wg sync.WaitGroup
	t.Cleanup(func() {
		_ = listener.Close()
		n.become("cut")
		wg.Wait()
	})
	wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { n.serve(client.(*net.TCPConn), upstream) })
		}
	})
	return n
}

// become sets the state.
func (n *network) become(state string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state = state
	for _, conn := range n.conns {
		_ = conn.Close()
	}
	n.conns = nil
}

func (n *network) serve(client *net.TCPConn, upstream string) {
	defer client.Close()
	server, err := net.Dial("tcp", upstream)
	if err != nil {
		return
	}
	defer server.Close()
	n.mu.Lock()
	state := n.state
	n.conns = append(n.conns, client, server.(*net.TCPConn))
	n.mu.Unlock()
	switch state {
	case "cut":
		return
	case "reset":
		_ = client.SetLinger(0)
		return
	case "black hole":
		_, _ = io.Copy(io.Discard, client) // until become
		return
	}
	go func() {
		defer client.Close() // ends the copy below
		if state != "slow" {
			_, _ = io.Copy(client, server)
			return
		}
		answer := make([]byte, 64<<10)
		for {
			size, err := server.Read(answer)
			if err != nil {
				return
			}
			time.Sleep(1500 * time.Millisecond)
			_, _ = client.Write(answer[:size]) // it may have given up
		}
	}()
	_, _ = io.Copy(server, client)
}

// startSentinel starts a sentinel for a master with the name "budget".
func startSentinel(t testing.TB, addr, master string) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	masterHost, masterPort, err := net.SplitHostPort(master)
	require.NoError(t, err)
	config := filepath.Join(t.TempDir(), "sentinel.conf") // which the sentinel rewrites
	text := fmt.Sprintf("bind %s\nport %s\nsentinel monitor budget %s %s 1\nsentinel down-after-milliseconds budget 2000\n",
		host, port, masterHost, masterPort)
	require.NoError(t, os.WriteFile(config, []byte(text), 0o600))
	start(t, addr, redisServer(t), config, "--sentinel")
}
