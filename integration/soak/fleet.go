package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/redis/go-redis/v9"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/redisbudget"
	"github.com/seed421102f4/httpretry/strategies"
)

// The protocols of the servers, and the transport of each.
const (
	http1 = iota
	http2
	overQUIC
	protocols
)

// fleet is the transports, their servers, Redis and the policy file.
type fleet struct {
	s *soak

	servers [protocols]atomic.Pointer[running] // nil while a server is down
	tcp     *http.Transport
	quic    *http3.Transport
	// One transport has HTTP/1 and HTTP/2, the other one HTTP/3.
	transports [2]*httpretry.RetryTransport
	certs      tls.Certificate
	roots      *x509.CertPool

	folder string // of the policy file and of Redis
	addr   string // of Redis
	redis  *exec.Cmd
	client *redis.Client
	budget *redisbudget.Budget
}

// running is a server.
type running struct {
	addr  string
	close func()
}

func newFleet(s *soak) (*fleet, error) {
	f := &fleet{s: s}
	source := httptest.NewTLSServer(nil) // for its certificate, which is that of example.com
	f.certs, f.roots = source.TLS.Certificates[0], x509.NewCertPool()
	f.roots.AddCert(source.Certificate())
	source.Close()
	var err error
	if f.folder, err = os.MkdirTemp("", "soak"); err != nil {
		return nil, err
	}
	if f.addr, err = freeAddress(); err != nil {
		return nil, err
	}
	if err := f.startRedis(); err != nil {
		return nil, err
	}
	redis.SetLogger(silent{})
	f.client = redis.NewClient(&redis.Options{Addr: f.addr})
	f.budget, err = redisbudget.New(redisbudget.Config{
		Client: f.client, Burst: 10, Logger: slog.New(slog.DiscardHandler),
		Observe: func(_ context.Context, d redisbudget.Decision) {
			s.count(fmt.Sprintf("decision of the budget (by Redis: %v)", d.Shared))
		},
	})
	if err != nil {
		return nil, err
	}
	for protocol := range protocols {
		if err := f.start(protocol); err != nil {
			return nil, err
		}
	}
	return f, f.connect()
}

// shortQUIC ends idle connections soon. http3 makes another one after an error
// of a stream, and does not close the one before.
func shortQUIC() *quic.Config { return &quic.Config{MaxIdleTimeout: time.Second} }

// silent logs nothing.
type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// connect makes the transports.
func (f *fleet) connect() error {
	f.tcp = &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			to, err := f.address(addr)
			if err != nil {
				return nil, err
			}
			return new(net.Dialer).DialContext(ctx, network, to)
		},
		TLSClientConfig:     &tls.Config{RootCAs: f.roots, ServerName: "example.com"},
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: f.s.clients,
	}
	f.quic = &http3.Transport{
		TLSClientConfig: &tls.Config{RootCAs: f.roots, ServerName: "example.com"},
		QUICConfig:      shortQUIC(),
		Dial: func(ctx context.Context, addr string, t *tls.Config, c *quic.Config) (*quic.Conn, error) {
			to, err := f.address(addr)
			if err != nil {
				return nil, err
			}
			return quic.DialAddrEarly(ctx, to, t, c)
		},
	}
	for i, base := range []http.RoundTripper{f.tcp, f.quic} {
		t, err := httpretry.New(httpretry.Config{
			Base: base, Policy: f.policy(),
			Observe: func(_ context.Context, e httpretry.Event) {
				f.s.count("event: " + e.Reason.String())
			},
		})
		if err != nil {
			return err
		}
		f.transports[i] = t
	}
	return nil
}

// address returns where the server of a host listens now. A host's name begins
// with its protocol.
func (f *fleet) address(host string) (string, error) {
	server := f.servers[host[0]-'0'].Load()
	if server == nil {
		return "", &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("the server is down")}
	}
	return server.addr, nil
}

// start starts the server of a protocol at another port.
func (f *fleet) start(protocol int) error {
	handler := http.HandlerFunc(f.s.serve)
	if protocol == overQUIC {
		conn, err := net.ListenPacket("udp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		server := &http3.Server{
			Handler:    handler,
			QUICConfig: shortQUIC(),
			TLSConfig:  http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{f.certs}}),
			Logger:     slog.New(slog.DiscardHandler),
		}
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = server.Serve(conn) // until it is closed
		}()
		f.servers[protocol].Store(&running{conn.LocalAddr().String(), func() {
			_ = server.Close()
			_ = conn.Close()
			<-served
		}})
		return nil
	}
	server := httptest.NewUnstartedServer(handler)
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	if protocol == http2 {
		server.EnableHTTP2 = true
		server.StartTLS()
	} else {
		server.Start()
	}
	f.servers[protocol].Store(&running{server.Listener.Addr().String(), func() {
		server.CloseClientConnections()
		server.Close()
	}})
	return nil
}

// stop ends a server and its connections.
func (f *fleet) stop(protocol int) { f.servers[protocol].Swap(nil).close() }

func (f *fleet) startRedis() error {
	host, port, err := net.SplitHostPort(f.addr)
	if err != nil {
		return err
	}
	for _, name := range []string{"redis-server", "valkey-server"} {
		f.redis = exec.Command(name, "--bind", host, "--port", port, "--save", "", "--dir", f.folder)
		if err = f.redis.Start(); err == nil || !errors.Is(err, exec.ErrNotFound) {
			return err
		}
	}
	return fmt.Errorf("bash ../redisbudget/install.sh installs Redis: %w", err)
}

func (f *fleet) killRedis() {
	_ = f.redis.Process.Kill()
	_ = f.redis.Wait() // it says that it was killed
}

// policy returns a policy at random.
func (f *fleet) policy() httpretry.Policy {
	p := httpretry.Policy{
		MaxAttempts:    2 + rand.IntN(3),
		AttemptTimeout: attemptTimeout,
		Backoff:        strategies.FullJitter{Base: 10 * time.Millisecond, Max: 100 * time.Millisecond},
		MaxRetryAfter:  5 * time.Second,
		Cooldown:       httpretry.Cooldown(rand.IntN(3)),
		Budget:         f.budget,
		ReplayBuffer:   64 << 10,
		Resume:         rand.IntN(2) == 0,
	}
	if rand.IntN(2) == 0 {
		p.ReadAhead = 16 << 10
	}
	return p
}

// files are texts of the policy file. The last one is wrong.
func files() []string {
	return []string{
		`{"default": {"maxAttempts": 3, "attemptTimeout": "400ms", "resume": true, "budget": {"burst": 10}}}`,
		`{"default": {"attemptTimeout": "400ms", "readAhead": 4096, "cooldown": "wait", "budget": {"burst": 10}},` +
			`"policies": {"*.cool.test": {"maxRetryAfter": "2s"}}}`,
		`{"default": {"maxAttempts": "three"}}`,
	}
}

// operate changes what the transports run with, until the run is over.
func (f *fleet) operate(over <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	path := filepath.Join(f.folder, "policies.json")
	f.write(path, 0)
	reloaded := make(chan struct{}, len(f.transports))
	for _, t := range f.transports {
		reloader := &policyfile.Reloader{
			Path: path, Transport: t, Interval: time.Second,
			Report: func(err error) { f.s.count(fmt.Sprintf("policy file read (wrong: %v)", err != nil)) },
		}
		go func() {
			if err := reloader.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
				f.s.problem("the reloader: %v", err)
			}
			reloaded <- struct{}{}
		}()
	}
	defer func() {
		cancel()
		for range f.transports {
			<-reloaded
		}
	}()

	for second := 1; ; second++ {
		select {
		case <-over:
			return
		case <-time.After(time.Second):
		}
		for _, t := range f.transports {
			if err := t.SetPolicies(f.policy(), map[string]httpretry.Policy{"*.cool.test": f.policy()}); err != nil {
				f.s.problem("SetPolicies: %v", err)
			}
			for _, origin := range t.Origins() {
				if origin.Waiting < 0 || origin.Waiting > f.s.clients {
					f.s.problem("%s: %d requests wait", origin.Origin, origin.Waiting)
				}
			}
		}
		if second%3 == 0 {
			f.write(path, second/3)
		}
		// Twenty-five seconds are a cycle, in a short run seven.
		cycle, down := 25, 5
		if f.s.duration < time.Minute {
			cycle, down = 7, 2
		}
		switch second % cycle {
		case cycle - down:
			f.killRedis()
			f.s.count("kill of Redis")
		case 0:
			if err := f.startRedis(); err != nil {
				f.s.problem("Redis: %v", err)
				return
			}
		}
		if protocol := second % 5; protocol < protocols {
			f.stop(protocol)
			time.Sleep(100 * time.Millisecond)
			if err := f.start(protocol); err != nil {
				f.s.problem("the server: %v", err)
				return
			}
		}
	}
}

// write replaces the policy file.
func (f *fleet) write(path string, i int) {
	all := files()
	text := strings.NewReplacer("10", fmt.Sprint(10+i%10)).Replace(all[i%len(all)])
	err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path))
	if err != nil {
		f.s.problem("the policy file: %v", err)
	}
}

// close ends everything. No request waits by then.
func (f *fleet) close() error {
	for _, t := range f.transports {
		for _, origin := range t.Origins() {
			if origin.Waiting != 0 {
				f.s.problem("%s: %d requests wait at the end", origin.Origin, origin.Waiting)
			}
		}
		t.CloseIdleConnections()
	}
	err := errors.Join(f.quic.Close(), f.budget.Close(), f.client.Close())
	for protocol := range protocols {
		f.stop(protocol)
	}
	f.killRedis()
	return errors.Join(err, os.RemoveAll(f.folder))
}
