// Package otelretry tells OpenTelemetry what httpretry does.
//
// [Observe] returns a [httpretry.Config] Observe function that records metrics:
//
//	httpretry.retries            counter    retries that were decided on
//	httpretry.wait               histogram  waits before them, in seconds
//	httpretry.request.attempts   histogram  attempts of each request that has ended
//	httpretry.request.duration   histogram  from its beginning to the end of its last attempt, in seconds
//
// The sum of httpretry.request.attempts is the number of attempts, its count
// that of requests, and its buckets say on which attempt requests ended: with
// httpretry.reason "final" and a status below 400 they succeeded, with another
// reason they were given up.
//
// [ResendCount] goes below otelhttp's transport, and sets the attribute
// http.request.resend_count on the span of each retry:
//
//	httpretry.Config{Base: otelhttp.NewTransport(otelretry.ResendCount(base))}
//
// # Labels
//
// Every set of labels is bounded: methods that are not well known are
// "_OTHER", and a server's address is a label only if it is configured.
// Neither paths nor headers are recorded.
package otelretry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed421102f4/httpretry"
)

// Scope is the name of the instrumentation scope.
const Scope = "github.com/seed421102f4/httpretry/otelretry"

// The attributes' names. All but the reason are those of OpenTelemetry's
// semantic conventions.
const (
	methodKey  = attribute.Key("http.request.method")
	statusKey  = attribute.Key("http.response.status_code")
	resendKey  = attribute.Key("http.request.resend_count")
	errorKey   = attribute.Key("error.type")
	addressKey = attribute.Key("server.address")
	reasonKey  = attribute.Key("httpretry.reason")

	other = "_OTHER"
)

// Config says what Observe records. Its zero value is valid.
type Config struct {
	// MeterProvider makes the instruments. Nil means otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// Hosts are the host names, without ports or wildcards, that the label
	// server.address may have; all others are "_OTHER". Empty means that there
	// is no such label.
	Hosts []string
}

type observer struct {
	hosts    map[string]bool
	retries  metric.Int64Counter
	waits    metric.Float64Histogram
	attempts metric.Int64Histogram
	duration metric.Float64Histogram
}

// Observe returns a function for httpretry's Config.Observe. It is safe for
// concurrent use. The error is that of the meter provider, or names a host
// that cannot be one.
func Observe(cfg Config) (func(context.Context, httpretry.Event), error) {
	provider := cfg.MeterProvider
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	o := &observer{hosts: make(map[string]bool, len(cfg.Hosts))}
	var problems []error
	for i, host := range cfg.Hosts {
		if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err != nil && (host == "" || strings.ContainsAny(host, "/:@[]* ")) {
			problems = append(problems, fmt.Errorf("otelretry: Config.Hosts[%d]: %q is not a host name without a port", i, host))
		}
		o.hosts[canonical(host)] = true
	}
	meter := provider.Meter(Scope)
	problems = append(problems, o.instruments(meter))
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return o.observe, nil
}

func (o *observer) instruments(meter metric.Meter) error {
	seconds := metric.WithExplicitBucketBoundaries(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
	var errs [4]error
	o.retries, errs[0] = meter.Int64Counter("httpretry.retries", metric.WithUnit("{retry}"),
		metric.WithDescription("Retries that were decided on, by what the attempt before ended with."))
	o.waits, errs[1] = meter.Float64Histogram("httpretry.wait", metric.WithUnit("s"), seconds,
		metric.WithDescription("Waits before retries."))
	o.attempts, errs[2] = meter.Int64Histogram("httpretry.request.attempts", metric.WithUnit("{attempt}"),
		metric.WithExplicitBucketBoundaries(1, 2, 3, 4, 5, 7, 10),
		metric.WithDescription("Attempts of a request that has ended, by why it did; 0 if its host was cooling down."))
	o.duration, errs[3] = meter.Float64Histogram("httpretry.request.duration", metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from a request's beginning, with what it waited before its first attempt, to the end of its last."))
	return errors.Join(errs[:]...)
}

func (o *observer) observe(ctx context.Context, e httpretry.Event) {
	labels := make([]attribute.KeyValue, 0, 5)
	labels = append(labels, methodKey.String(method(e.Request.Method)))
	if len(o.hosts) > 0 {
		labels = append(labels, addressKey.String(o.host(e.Request)))
	}
	if e.Reason == 0 {
		o.waits.Record(ctx, e.Wait.Seconds(), metric.WithAttributes(labels...))
		o.retries.Add(ctx, 1, metric.WithAttributes(append(labels, result(e))...))
		return
	}
	set := metric.WithAttributes(append(labels, reasonKey.String(e.Reason.String()), result(e))...)
	o.attempts.Record(ctx, int64(e.Attempt), set)
	o.duration.Record(ctx, e.Elapsed.Seconds(), set)
}

// result says what an attempt ended with: a status of three digits, of which
// there are at most 900, or one of a few kinds of errors. Over HTTP/2, net/http
// takes any number that a server sends for a status.
func result(e httpretry.Event) attribute.KeyValue {
	if e.Response != nil {
		if status := e.Response.StatusCode; 100 <= status && status <= 999 {
			return statusKey.Int(status)
		}
		return errorKey.String(other)
	}
	var timeout interface{ Timeout() bool }
	switch {
	case e.Reason == httpretry.ReasonCanceled:
		return errorKey.String("canceled")
	case errors.As(e.Err, &timeout) && timeout.Timeout():
		return errorKey.String("timeout")
	}
	return errorKey.String(other)
}

func method(m string) string {
	switch m {
	case "":
		return http.MethodGet
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
		http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace, "QUERY":
		return m
	}
	return other
}

func (o *observer) host(req *http.Request) string {
	if req.URL != nil {
		if host := canonical(req.URL.Hostname()); o.hosts[host] {
			return host
		}
	}
	return other
}

func canonical(host string) string {
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// ResendCount returns a base transport that sets http.request.resend_count on
// the span in the context of each retry that it sends, which is otelhttp's if
// it stands below otelhttp's transport and that below httpretry's. A first
// attempt has no such attribute, as the semantic conventions ask. Nil means
// http.DefaultTransport.
func ResendCount(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return &resendCount{base}
}

type resendCount struct{ base http.RoundTripper }

func (t *resendCount) RoundTrip(req *http.Request) (*http.Response, error) {
	if n := httpretry.Attempt(req.Context()); n > 1 {
		trace.SpanFromContext(req.Context()).SetAttributes(resendKey.Int(n - 1))
	}
	return t.base.RoundTrip(req)
}

func (t *resendCount) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
