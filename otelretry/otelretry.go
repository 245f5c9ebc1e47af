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
// [Origins] registers gauges of the state of a transport's origins, and
// [PolicyFile] one of a file of policies:
//
//	httpretry.budget.balance          how many retries a budget would allow now
//	httpretry.cooldown.remaining      the rest of a cool-down, in seconds
//	httpretry.request.waiting         requests that wait for a retry or a cool-down
//	httpretry.policyfile.in_effect    1 if the last change of the file is in effect
//
// If the context of a request has a span that is recorded, [Observe] adds two
// events to it for each wait. httpretry.wait is at its beginning, with the
// planned seconds, the seconds that the server asked for, and the result of the
// attempt before. httpretry.waited has the seconds that it really took, and is
// added when the attempt after it has ended, or the request. A first attempt
// that a cool-down delayed has only the second one, and a retry at once only the
// first one.
//
// The number of label sets is bounded by the configuration. Methods that are not
// well known are recorded as "_OTHER", and so are hosts that [Config.Hosts] does
// not name. Paths and headers are not recorded. The README of this module has a
// table of all metrics with their labels, and one of the conventions that their
// names follow. docs/stability.md in the repository has the rules for later
// versions.
package otelretry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	portKey    = attribute.Key("server.port")

	transportKey = attribute.Key("httpretry.transport")
	policyKey    = attribute.Key("httpretry.policy")
	outcomeKey   = attribute.Key("httpretry.outcome")
	reasonKey    = attribute.Key("httpretry.reason")
	budgetKey    = attribute.Key("httpretry.budget")
	allowedKey   = attribute.Key("httpretry.allowed")
	plannedKey   = attribute.Key("httpretry.wait.planned")
	askedKey     = attribute.Key("httpretry.wait.asked")
	waitedKey    = attribute.Key("httpretry.wait.duration")

	otherValue = "_OTHER"
)

// Config configures [Observe], [ObserveBudget], [Origins] and [PolicyFile]. Its
// zero value is valid.
type Config struct {
	_ [0]func() // no unkeyed literals, no comparison

	// MeterProvider creates the instruments. Nil means otel.GetMeterProvider().
	MeterProvider metric.MeterProvider

	// Name is the value of the label httpretry.transport of all metrics. "" means
	// that it is not recorded. If a program has several transports, each needs a
	// name of its own for [Origins].
	Name string

	// Hosts lists the values that the label server.address may have: hosts as in
	// the keys of httpretry.Config.Policies, with or without a port or a
	// wildcard, such as "*.example.com". An IPv6 address needs brackets only
	// before a port. The most specific one wins, and the label of a wildcard is
	// the wildcard. All other hosts are recorded as "_OTHER". If Hosts is empty,
	// server.address and server.port are not recorded.
	//
	// A server may redirect to any port. So server.port is recorded only if it is
	// in Hosts, or the default of the scheme.
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
	hosts    hosts
	common   []attribute.KeyValue // of all metrics
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
	o := &observer{common: cfg.common(), refused: map[*http.Request]refusals{}}
	var err error
	o.hosts, err = newHosts(cfg.Hosts)
	if err := errors.Join(err, o.instruments(cfg.meter())); err != nil {
		return nil, err
	}
	return o.observe, nil
}

// meter returns the meter for all instruments.
func (cfg Config) meter() metric.Meter {
	provider := cfg.MeterProvider
	if provider == nil {
		provider = otel.GetMeterProvider()
	}
	return provider.Meter(Scope)
}

// common returns the labels of all metrics.
func (cfg Config) common() []attribute.KeyValue {
	if cfg.Name == "" {
		return nil
	}
	return []attribute.KeyValue{transportKey.String(cfg.Name)}
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
// the MeterProvider and the Name of cfg. The function is safe for concurrent use. The error
// is that of the meter provider.
func ObserveBudget(cfg Config) (func(context.Context, BudgetDecision), error) {
	decisions, err := cfg.meter().Int64Counter("httpretry.budget.decisions",
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
			append(cfg.common(), budgetKey.String(budget), allowedKey.Bool(d.Allowed))...))
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
	addWaits(trace.SpanFromContext(ctx), e)
	labels := append(make([]attribute.KeyValue, 0, 8), o.common...)
	labels = o.hosts.add(labels, e.Request.URL)
	if key := e.Attempt.PolicyKey; key != "" {
		labels = append(labels, policyKey.String(key))
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
		o.retries.Add(ctx, 1, metric.WithAttributes(append(labels,
			outcomeLabel(e), resultLabel(e))...))
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

// addWaits adds the events of the waits before and after e's attempt to the span
// of the request.
func addWaits(span trace.Span, e httpretry.Event) {
	if !span.IsRecording() {
		return
	}
	if e.Waited > 0 {
		span.AddEvent("httpretry.waited", trace.WithAttributes(
			waitedKey.Float64(e.Waited.Seconds())))
	}
	if e.Reason == httpretry.ReasonNone {
		span.AddEvent("httpretry.wait", trace.WithAttributes(
			plannedKey.Float64(e.Wait.Seconds()), askedKey.Float64(e.Asked.Seconds()),
			outcomeLabel(e), resultLabel(e)))
	}
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

// outcomeLabel returns why an attempt is retried. The Outcome of one whose body
// broke off is that of its response.
func outcomeLabel(e httpretry.Event) attribute.KeyValue {
	if e.Attempt.Outcome == httpretry.Unprocessed {
		return outcomeKey.String(httpretry.Unprocessed.String())
	}
	return outcomeKey.String(httpretry.Transient.String())
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
