// Package otelretry records the retries of httpretry with OpenTelemetry.
//
// [Observe] returns a function for [httpretry.Config.Observe] that records these
// metrics:
//
//	httpretry.retries           counter    retries, by the result of the
//	                                       attempt before
//	httpretry.wait              histogram  waits, in seconds
//	httpretry.request.attempts  histogram  attempts that were sent, of each
//	                                       request that ended
//	httpretry.request.duration  histogram  from the start of a request to the
//	                                       end of its last attempt, in seconds
//	httpretry.resumes           counter    bodies that broke off, when they
//	                                       continue or fail
//
// A retry is counted before its wait, so it counts even if the wait is canceled
// or a layer refuses the retry. The retry of an attempt that a layer refused is
// not counted.
//
// A wait is recorded when it has ended, with the time that it really took. It
// includes a cool-down that extended it or delayed a first attempt. If it was
// canceled, it is the time until then.
//
// Retries include the requests for the rest of a body that broke off (see
// [httpretry.Policy.Resume]), and waits include the waits before them. Attempts
// and durations do not include them. Their results are those of
// httpretry.resumes, which needs Policy.Resume. It has no label for the method,
// because only a GET is resumed.
//
// An attempt is sent if no layer in Base refuses it. A layer, such as a circuit
// breaker, refuses an attempt if the error that it returns, or one that this
// error wraps, has the Outcome Unprocessed (see [httpretry.WithOutcome]). An
// attempt that net/http makes is sent, even if it gets no connection or if the
// server refuses it with a GOAWAY.
//
// The sum of httpretry.request.attempts is the number of attempts, its count
// the number of requests, and its buckets show how many attempts requests took.
// Requests of which no attempt was sent are in the first bucket. The label
// httpretry.reason is the text of the [httpretry.Reason] with which the request
// ended, such as "success", or "permanent" for a failure that no retry can
// change. A later version may add reasons, so a program or an alert must treat
// one that it does not know as a failure.
//
// [ObserveBudget] returns a function that counts the decisions of a budget that
// processes share, such as a redisbudget.Budget:
//
//	httpretry.budget.decisions  counter    calls of Withdraw, by their result,
//	                                       and by the budget that decided
//
// [NewTransport] returns otelhttp's transport, for a span of each attempt, with
// [ResendCount] below it:
//
//	httpretry.Config{
//		Base: otelretry.NewTransport(base),
//	}
//
// The number of label sets is bounded, because methods that are not well known
// are recorded as "_OTHER", and so are hosts that [Config.Hosts] does not name.
// Paths and headers are not recorded. The README of this module has a table of
// all metrics with their labels. docs/stability.md in the repository has the
// rules for later versions.
package otelretry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"strconv"
	"strings"
	"sync"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/seed421102f4/httpretry"
)

// Scope is the name of the instrumentation scope of all metrics, as a view or a
// reader of metrics sees it.
const Scope = "github.com/seed421102f4/httpretry/otelretry"

// Names of attributes. Those that do not begin with httpretry are from
// OpenTelemetry's semantic conventions.
const (
	methodKey  = attribute.Key("http.request.method")
	statusKey  = attribute.Key("http.response.status_code")
	resendKey  = attribute.Key("http.request.resend_count")
	errorKey   = attribute.Key("error.type")
	addressKey = attribute.Key("server.address")
	reasonKey  = attribute.Key("httpretry.reason")
	budgetKey  = attribute.Key("httpretry.budget")
	allowedKey = attribute.Key("httpretry.allowed")

	otherValue = "_OTHER"
)

// Config configures [Observe] and [ObserveBudget]. Its zero value is valid.
type Config struct {
	_ [0]func() // no unkeyed literals, no comparison

	// MeterProvider creates the instruments. Nil means otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// Hosts lists the values that the label server.address may have: names or
	// IP addresses, without ports or wildcards. Case and a trailing dot do not
	// matter, and a name outside ASCII must be written as requests have it.
	// All other hosts are recorded as "_OTHER". If Hosts is empty, server.address
	// is not recorded.
	Hosts []string
}

// BudgetDecision is the argument of the function that [ObserveBudget] returns:
// the result of one call of Withdraw of a budget that processes share.
type BudgetDecision struct {
	_ [0]func() // no unkeyed literals, no comparison

	Allowed bool // the retry was allowed

	// Shared reports whether the shared budget decided. Otherwise a budget of
	// the process did, such as that of redisbudget while Redis fails.
	Shared bool
}

type observer struct {
	hosts    map[string]bool
	retries  metric.Int64Counter
	waits    metric.Float64Histogram
	attempts metric.Int64Histogram
	duration metric.Float64Histogram
	resumes  metric.Int64Counter

	mu      sync.Mutex
	refused map[*http.Request]refusals // until the request ends
}

// maxRefused limits observer.refused. A request whose RoundTrip panics after a
// refused attempt has no last Event, so its entry stays.
const maxRefused = 1024

// refusals are the attempts of a request that layers have refused.
type refusals struct {
	count int
	last  int // the number of the last of them
}

// Observe returns a function for [httpretry.Config.Observe]. The function is
// safe for concurrent use. The error lists the values of Config.Hosts that are
// not valid, and the error of the meter provider.
func Observe(cfg Config) (func(context.Context, httpretry.Event), error) {
	provider := cfg.MeterProvider
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	o := &observer{
		hosts:   make(map[string]bool, len(cfg.Hosts)),
		refused: map[*http.Request]refusals{},
	}
	var problems []error
	for i, host := range cfg.Hosts {
		if !isHost(host) {
			problems = append(problems, fmt.Errorf("otelretry: Config.Hosts[%d]: "+
				"%q: want a name or an IP address, without a port", i, host))
		}
		o.hosts[canonicalHost(host)] = true
	}
	meter := provider.Meter(Scope)
	problems = append(problems, o.instruments(meter))
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return o.observe, nil
}

// ObserveBudget returns a function for the decisions of a budget that processes
// share. For a redisbudget.Budget, it is called like this:
//
//	record, err := otelretry.ObserveBudget(otelretry.Config{})
//	...
//	budget, err := redisbudget.New(redisbudget.Config{
//		Client: client,
//		Observe: func(ctx context.Context, d redisbudget.Decision) {
//			record(ctx, otelretry.BudgetDecision{Allowed: d.Allowed, Shared: d.Shared})
//		},
//	})
//
// It counts decisions in httpretry.budget.decisions, with the labels
// httpretry.budget ("shared" or "local") and httpretry.allowed. It uses only
// the MeterProvider of cfg. The function is safe for concurrent use. The error
// is that of the meter provider.
func ObserveBudget(cfg Config) (func(context.Context, BudgetDecision), error) {
	provider := cfg.MeterProvider
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	decisions, err := provider.Meter(Scope).Int64Counter("httpretry.budget.decisions",
		metric.WithUnit("{decision}"),
		metric.WithDescription("Retries that were asked for, by the budget that decided."))
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, d BudgetDecision) {
		budget := "local"
		if d.Shared {
			budget = "shared"
		}
		decisions.Add(ctx, 1, metric.WithAttributes(
			budgetKey.String(budget), allowedKey.Bool(d.Allowed)))
	}, nil
}

// instruments creates the instruments of o.
func (o *observer) instruments(meter metric.Meter) error {
	seconds := metric.WithExplicitBucketBoundaries(
		0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
	var errs [5]error
	o.retries, errs[0] = meter.Int64Counter("httpretry.retries",
		metric.WithUnit("{retry}"),
		metric.WithDescription("Retries, by the result of the attempt before. "+
			"Attempts that a layer refused have none."))
	o.waits, errs[1] = meter.Float64Histogram("httpretry.wait",
		metric.WithUnit("s"), seconds,
		metric.WithDescription("Waits for retries and for hosts to cool down."))
	o.attempts, errs[2] = meter.Int64Histogram("httpretry.request.attempts",
		metric.WithUnit("{attempt}"),
		metric.WithExplicitBucketBoundaries(0, 1, 2, 3, 4, 5, 7, 10),
		metric.WithDescription("Attempts of a request that ended, without those "+
			"that a layer refused; 0 if nothing was sent."))
	o.duration, errs[3] = meter.Float64Histogram("httpretry.request.duration",
		metric.WithUnit("s"), seconds,
		metric.WithDescription("Time from the start of a request, including a "+
			"wait before its first attempt, to the end of its last attempt."))
	o.resumes, errs[4] = meter.Int64Counter("httpretry.resumes",
		metric.WithUnit("{resume}"),
		metric.WithDescription("Response bodies that broke off, when they continue or fail."))
	return errors.Join(errs[:]...)
}

func (o *observer) observe(ctx context.Context, e httpretry.Event) {
	labels := make([]attribute.KeyValue, 0, 5)
	if len(o.hosts) > 0 {
		labels = append(labels, addressKey.String(o.addressLabel(e.Request)))
	}
	ended := []attribute.KeyValue{reasonKey.String(e.Reason.String()), resultLabel(e)}
	if e.Resuming && e.Reason != httpretry.ReasonNone {
		o.resumes.Add(ctx, 1, metric.WithAttributes(append(ended, labels...)...))
	}
	labels = append(labels, methodKey.String(methodLabel(e.Request.Method)))
	// Event.Wait is only the wait that was planned.
	if e.Waited > 0 {
		o.waits.Record(ctx, e.Waited.Seconds(), metric.WithAttributes(labels...))
	}
	refused := isRefusal(e.Err)
	if e.Reason == httpretry.ReasonNone && !refused {
		o.retries.Add(ctx, 1, metric.WithAttributes(append(labels, resultLabel(e))...))
	}
	// The request of a body that broke off was recorded when it ended.
	if e.Resuming {
		return
	}
	sent := o.sent(e, refused)
	if e.Reason == httpretry.ReasonNone {
		return
	}
	set := metric.WithAttributes(append(labels, ended...)...)
	o.attempts.Record(ctx, int64(sent), set)
	o.duration.Record(ctx, e.Elapsed.Seconds(), set)
}

// sent returns how many attempts of a request were sent until e. Each refused
// one has an Event of its own, so sent counts those until the request ends.
func (o *observer) sent(e httpretry.Event, refused bool) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	r, known := o.refused[e.Request]
	// If the request ends in a wait, its last Event may have the error of the
	// attempt before the wait.
	if refused && e.Attempt.Number > r.last {
		r = refusals{r.count + 1, e.Attempt.Number}
	}
	switch {
	case e.Reason != httpretry.ReasonNone:
		delete(o.refused, e.Request)
	case refused:
		if !known {
			o.makeRoom()
		}
		o.refused[e.Request] = r
	}
	// A Request that is sent twice at the same time has one entry for both.
	return max(e.Attempt.Number-r.count, 0)
}

// makeRoom deletes any entry of o.refused if there are maxRefused. If its
// request goes on, the attempts that were refused count as sent.
func (o *observer) makeRoom() {
	if len(o.refused) < maxRefused {
		return
	}
	for req := range o.refused {
		delete(o.refused, req)
		return
	}
}

// isRefusal reports whether err is that of a layer that has sent nothing. A
// layer that wants no retry wraps such an error in one with the Outcome Final.
func isRefusal(err error) bool {
	type outcomer interface {
		error
		Outcome() httpretry.Outcome
	}
	for {
		// Of joined errors, each must be that of a layer that has sent nothing.
		own, ok := errors.AsType[outcomer](err)
		if !ok || httpretry.Classify(nil, nil, err) == httpretry.Unprocessed {
			return ok
		}
		err = errors.Unwrap(own)
	}
}

// resultLabel returns the status or the kind of error that an attempt ended
// with.
func resultLabel(e httpretry.Event) attribute.KeyValue {
	status := e.Status()
	// The status of a response begins with its number, if that is a valid one.
	code, _, _ := strings.Cut(status, " ")
	if n, err := strconv.Atoi(code); err == nil {
		return statusKey.Int(n)
	}
	return errorKey.String(status)
}

// methodLabel returns a method, or "_OTHER" if it is not well known.
func methodLabel(method string) string {
	switch method {
	case "":
		return http.MethodGet
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut,
		http.MethodPatch, http.MethodDelete, http.MethodConnect,
		http.MethodOptions, http.MethodTrace, "QUERY":
		return method
	}
	return otherValue
}

// addressLabel returns the host of a request, or "_OTHER" if it is not one of
// Config.Hosts.
func (o *observer) addressLabel(req *http.Request) string {
	if req.URL != nil {
		if host := canonicalHost(req.URL.Hostname()); o.hosts[host] {
			return host
		}
	}
	return otherValue
}

// isHost reports whether host can be the host of a URL, without a port.
func isHost(host string) bool {
	if _, err := netip.ParseAddr(withoutBrackets(host)); err == nil {
		return true
	}
	return host != "" && !strings.ContainsAny(host, "/:@[]* ")
}

// canonicalHost returns the same value for all spellings of a host that
// httpretry considers equal: a name in lower case without trailing dots, or an
// IP address in its shortest form. Unlike httpretry's, an IPv6 address has no
// brackets, as the semantic conventions want it.
func canonicalHost(host string) string {
	host = strings.ToLower(withoutBrackets(host))
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.String()
	}
	return strings.TrimRight(host, ".")
}

// withoutBrackets removes the brackets around an IPv6 address.
func withoutBrackets(host string) string {
	if inner, ok := strings.CutPrefix(host, "["); ok {
		if inner, ok = strings.CutSuffix(inner, "]"); ok {
			return inner
		}
	}
	return host
}

// NewTransport returns otelhttp's transport with the given options, with
// [ResendCount] and base below it. [httpretry.Through] declares that it sends each
// request once. For base, the same holds as for that of ResendCount.
func NewTransport(base http.RoundTripper, options ...otelhttp.Option) http.RoundTripper {
	count := ResendCount(base)
	return httpretry.Through(otelhttp.NewTransport(count, options...), count)
}

// ResendCount returns an [http.RoundTripper] that sets the attribute
// http.request.resend_count on the span in the context of each retry, and sends
// the request once with base. Below otelhttp's transport, which itself is below
// httpretry's, that is the span of the attempt. First attempts get no such
// attribute, as the semantic conventions require.
//
// A nil base means a new connection pool, as a nil Base does in httpretry.Config.
// ResendCount panics if base is a nil pointer or a nil function. The
// RoundTripper has the methods CloseIdleConnections and Unwrap, so httpretry
// knows what is below it.
func ResendCount(base http.RoundTripper) http.RoundTripper {
	switch v := reflect.ValueOf(base); {
	case base == nil:
		base = new(httpretry.RetryTransport).Unwrap() // the default of its Base
	case (v.Kind() == reflect.Pointer || v.Kind() == reflect.Func) && v.IsNil():
		panic(fmt.Sprintf("otelretry: ResendCount: a nil %T: "+
			"want no value for the default, or a usable transport", base))
	}
	return &resendCount{base}
}

type resendCount struct{ base http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (t *resendCount) RoundTrip(req *http.Request) (*http.Response, error) {
	if n := httpretry.Attempt(req.Context()); n > 1 {
		trace.SpanFromContext(req.Context()).SetAttributes(resendKey.Int(n - 1))
	}
	return t.base.RoundTrip(req)
}

// Unwrap returns the base. RoundTrip sends each request once, so httpretry may
// look through it.
func (t *resendCount) Unwrap() http.RoundTripper { return t.base }

// CloseIdleConnections closes the idle connections of the base.
func (t *resendCount) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
