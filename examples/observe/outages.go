package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/otelretry"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/strategies"
)

// hosts has the kinds of total outages, and a host that works. The bodies of
// breaks.test are read ahead, and those of stops.test break off while the program
// reads them.
var hosts = []string{
	"unavailable.test", "refused.test", "hangs.test", "certificate.test",
	"unknown.test", "breaks.test", "stops.test", "limited.test", "works.test",
}

// serveOutages sends requests to all hosts, and serves metrics, until ctx ends.
func serveOutages(ctx context.Context, addr string) error {
	registry := prometheus.NewRegistry()
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	srv := &http.Server{Addr: addr, Handler: mux}
	defer context.AfterFunc(ctx, func() { srv.Close() })()

	playing := make(chan error, 1)
	go func() { playing <- playOutages(ctx, registry, time.Second) }()
	fmt.Printf("metrics of outages: http://%s/metrics\n", addr)
	err := srv.ListenAndServe()
	if ctx.Err() == nil {
		return err
	}
	return <-playing
}

// playOutages sends a request to each of the hosts once per interval, until ctx
// ends. The file of policies is missing, and the budget that processes share is
// out of reach.
func playOutages(ctx context.Context, registry *prometheus.Registry, interval time.Duration) error {
	meters, err := newMeters(registry)
	if err != nil {
		return err
	}
	cfg := otelretry.Config{MeterProvider: meters, Name: "demo", Hosts: hosts}
	observe, err := otelretry.Observe(cfg)
	if err != nil {
		return err
	}
	transport, stop, err := newTransport(observe)
	if err != nil {
		return err
	}
	defer stop()
	reloader := &policyfile.Reloader{
		Path: "missing.json", Transport: transport, Report: func(error) {}}
	_ = reloader.Reload() // the gauge shows the error
	_, err1 := otelretry.Origins(transport, cfg)
	_, err2 := otelretry.PolicyFile(reloader, cfg)
	decided, err3 := otelretry.ObserveBudget(cfg)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}

	var wg sync.WaitGroup
	defer wg.Wait()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		decided(ctx, otelretry.BudgetDecision{Allowed: true})
		for _, host := range hosts {
			wg.Go(func() { send(ctx, transport, host) })
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
		}
	}
	return nil
}

// send sends a request, whose result only the metrics show.
func send(ctx context.Context, transport http.RoundTripper, host string) {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	scheme := "http"
	if host == "certificate.test" {
		scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, "GET", scheme+"://"+host, nil)
	if err != nil {
		panic(err) // the hosts are valid
	}
	if resp, err := transport.RoundTrip(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

// newTransport returns a transport for the hosts, and a function that ends their
// servers.
func newTransport(
	observe func(context.Context, httpretry.Event),
) (transport *httpretry.RetryTransport, stop func(), err error) {
	base, stop := newNetwork()
	policy := httpretry.Policy{
		Backoff: strategies.Constant{Wait: 10 * time.Millisecond}, ReadAhead: 1 << 10,
	}
	transport, err = httpretry.New(httpretry.Config{Base: base, Policy: policy, Observe: observe,
		Policies: map[string]httpretry.Policy{"stops.test": {Resume: true}}})
	return transport, stop, err
}

// newNetwork returns a transport that connects all hosts with servers of this
// process, and a function that ends them.
func newNetwork() (base *http.Transport, stop func()) {
	srv := httptest.NewServer(http.HandlerFunc(serveHost))
	secure := httptest.NewUnstartedServer(http.NotFoundHandler())
	secure.Config.ErrorLog = log.New(io.Discard, "", 0) // clients refuse the certificate
	secure.StartTLS()
	base = &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			to := srv
			switch host, _, _ := strings.Cut(addr, ":"); host {
			case "refused.test":
				addr = "127.0.0.1:1" // nobody listens
				return new(net.Dialer).DialContext(ctx, network, addr)
			case "unknown.test":
				return nil, &net.OpError{Op: "dial", Net: network,
					Err: &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}}
			case "certificate.test":
				to = secure
			}
			return new(net.Dialer).DialContext(ctx, network, to.Listener.Addr().String())
		},
	}
	return base, func() {
		base.CloseIdleConnections()
		srv.Close()
		secure.Close()
	}
}

// serveHost fails as the name of the host says.
func serveHost(w http.ResponseWriter, r *http.Request) {
	switch r.Host {
	case "unavailable.test":
		w.WriteHeader(http.StatusServiceUnavailable)
	case "limited.test":
		w.Header().Set("Retry-After", "120")
		w.WriteHeader(http.StatusTooManyRequests)
	case "works.test":
		w.WriteHeader(http.StatusNotFound)
	case "hangs.test":
		<-r.Context().Done()
	case "breaks.test", "stops.test":
		w.Header().Set("Content-Length", "8")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}
