package httpretry_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

// firstAttempt is the result of a first attempt.
var firstAttempt = httpretry.AttemptResult{Number: 1}

// reasons has the text of each Reason, which is a part of the API, and a part
// of its hint.
var reasons = []struct {
	reason     httpretry.Reason
	name, text string
	hint       string
}{
	{httpretry.ReasonNone, "ReasonNone", "none", ""},
	{httpretry.ReasonSuccess, "ReasonSuccess", "success", ""},
	{httpretry.ReasonPermanent, "ReasonPermanent", "permanent", ""},
	{httpretry.ReasonCanceled, "ReasonCanceled", "canceled", ""},
	{httpretry.ReasonAttempts, "ReasonAttempts", "attempts_exhausted", "Policy.MaxAttempts"},
	{httpretry.ReasonDisabled, "ReasonDisabled", "retries_disabled", "WithoutRetries"},
	{httpretry.ReasonCallerRetries, "ReasonCallerRetries", "caller_retries", "Middleware"},
	{httpretry.ReasonNotIdempotent, "ReasonNotIdempotent", "not_idempotent",
		"Idempotency-Key header, Policy.NewIdempotencyKey or WithIdempotent"},
	{httpretry.ReasonNotReplayable, "ReasonNotReplayable", "not_replayable", "Policy.ReplayBuffer"},
	{httpretry.ReasonDoNotRetry, "ReasonDoNotRetry", "do_not_retry", "Policy.Classify"},
	{httpretry.ReasonRetryAfter, "ReasonRetryAfter", "retry_after_too_long",
		"Policy.MaxRetryAfter"},
	{httpretry.ReasonCooldown, "ReasonCooldown", "host_cooling_down", "Policy.Cooldown"},
	{httpretry.ReasonDeadline, "ReasonDeadline", "deadline_exceeded", "http.Client.Timeout"},
	{httpretry.ReasonMaxElapsed, "ReasonMaxElapsed", "max_elapsed", "Policy.MaxElapsed"},
	{httpretry.ReasonBudget, "ReasonBudget", "budget_exhausted", "Policy.Budget"},
	{httpretry.ReasonNotResumable, "ReasonNotResumable", "not_resumable", "Policy.Resume"},
}

func TestReasonString(t *testing.T) {
	for i, r := range reasons {
		assert.EqualValues(t, i, r.reason, "%s: values are stored and compared", r.name)
		assert.Equal(t, r.text, r.reason.String(), r.name)
		text, err := json.Marshal(httpretry.Result{Attempts: 2, Reason: r.reason})
		require.NoError(t, err)
		assert.JSONEq(t, fmt.Sprintf(`{"Attempts": 2, "Reason": %q, "Unprocessed": false}`, r.text),
			string(text))
	}
	next := httpretry.Reason(len(reasons))
	assert.Equal(t, fmt.Sprintf("Reason(%d)", len(reasons)), next.String(),
		"the table reasons in this file has no row for it")
	assert.Equal(t, "Reason(200)", httpretry.Reason(200).String())
}

// The constants, the package documentation and the README name the same reasons
// as the table.
func TestReasonsAreDocumented(t *testing.T) {
	read := func(file, expression string) (found [][]string) {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		return regexp.MustCompile(expression).FindAllStringSubmatch(string(text), -1)
	}
	var names, texts []string
	for i, match := range read("event.go", `(?m)^\t// (Reason\w+) is "(\w+)"\. `) {
		names, texts = append(names, match[1]), append(texts, match[2])
		require.Less(t, i, len(reasons), "the table reasons in this file has no %s", match[1])
		assert.Equal(t, reasons[i].name, match[1])
		assert.Equal(t, reasons[i].text, match[2], "event.go: the comment of %s", match[1])
	}
	require.Len(t, names, len(reasons), "event.go: constants with a comment")

	documented := map[string]int{}
	for _, match := range read("doc.go", `\bReason[A-Z]\w+`) {
		documented[match[0]]++
	}
	for _, row := range read("README.md", `(?m)^\| [^|]*\? \|( [^|]+)\|`) {
		for _, match := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(row[1], -1) {
			documented[match[1]]++
		}
	}
	// A request that ends never has ReasonNone.
	for _, name := range append(names[1:], texts[1:]...) {
		assert.Equal(t, 1, documented[name], "doc.go and README.md: %s", name)
		delete(documented, name)
	}
	assert.Empty(t, documented, "doc.go or README.md: these are not reasons")
}

// newLogger returns a logger without times, and its output.
func newLogger() (*slog.Logger, *bytes.Buffer) {
	var buf bytes.Buffer
	return slog.New(slog.NewTextHandler(&buf, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})), &buf
}

func TestLogEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger, out := newLogger()
		for _, tt := range []struct {
			method string
			steps  script
			want   string
		}{
			{"", script{s503, s503, s200},
				"level=INFO msg=\"retrying request\" method=GET url=http://a.test/path attempt=1 " +
					"elapsed=0s status=\"503 Service Unavailable\" wait=1s\n" +
					"level=INFO msg=\"retrying request\" method=GET url=http://a.test/path attempt=2 " +
					"elapsed=1s waited=1s status=\"503 Service Unavailable\" wait=1s\n"},
			{"GET", script{asksFor(3600)},
				"level=WARN msg=\"gave up on request\" method=GET url=http://a.test/path " +
					"attempt=1 elapsed=0s status=\"429 Too Many Requests\" asked=1h0m0s " +
					"hint=\"" + httpretry.ReasonRetryAfter.Hint() +
					"\" reason=retry_after_too_long\n"},
			{"POST", script{reset},
				"level=WARN msg=\"gave up on request\" method=POST url=http://a.test/path " +
					"attempt=1 elapsed=0s status=\"connection broken\" " +
					"error=\"" + contract.ErrReset.Error() + "\" " +
					"hint=\"" + httpretry.ReasonNotIdempotent.Hint() +
					"\" reason=not_idempotent\n"},
		} {
			out.Reset()
			transport := contract.New(t, httpretry.Config{Base: contract.Play(tt.steps...),
				Policy: contract.RetryEvery(time.Second), Observe: httpretry.LogEvents(logger)})
			_ = exchange(t, transport, contract.Request(t, tt.method, "http://a.test/path", ""))
			assert.Equal(t, tt.want, out.String())
		}
	})
}

// Only failures that end a request are warnings. A retry is expected, and a
// request that a caller retries or has left has not failed.
func TestLogEventsLevels(t *testing.T) {
	const failed = `level=WARN msg="gave up on request"`
	others := map[httpretry.Reason]string{
		httpretry.ReasonSuccess:       "",
		httpretry.ReasonPermanent:     "",
		httpretry.ReasonNone:          `level=INFO msg="retrying request"`,
		httpretry.ReasonCallerRetries: `level=INFO msg="left the retry to the caller"`,
		httpretry.ReasonCanceled:      `level=INFO msg="caller canceled request"`,
	}
	for _, r := range reasons {
		want, ok := others[r.reason]
		if !ok {
			want = failed
		}
		logger, out := newLogger()
		e := httpretry.Event{Request: newGet(t), Attempt: firstAttempt, Reason: r.reason}
		httpretry.LogEvents(logger)(t.Context(), e)
		logged, _, _ := strings.Cut(out.String(), " method=")
		assert.Equal(t, want, logged, r.name)
	}
	logger, out := newLogger()
	httpretry.LogEvents(logger)(t.Context(), httpretry.Event{Request: newGet(t),
		Attempt: firstAttempt, Reason: httpretry.ReasonPermanent, Err: unknownHost})
	assert.Contains(t, out.String(), failed, "permanent error")
}

// contextHandler is a slog.Handler that records the contexts it gets.
type contextHandler struct {
	slog.Handler
	got     []context.Context
	handled int
}

func (h *contextHandler) Enabled(ctx context.Context, _ slog.Level) bool {
	h.got = append(h.got, ctx)
	return true
}

func (h *contextHandler) Handle(ctx context.Context, r slog.Record) error {
	h.got = append(h.got, ctx)
	h.handled++
	return h.Handler.Handle(ctx, r)
}

// An observer, such as the handler of a log, gets the request's own context, in
// which it may find the span that the request belongs to, and not an attempt's.
func TestLogEventsContext(t *testing.T) {
	type key struct{}
	handler := &contextHandler{Handler: slog.DiscardHandler}
	ctx := context.WithValue(t.Context(), key{}, "span")
	policy := contract.RetryEvery(0)
	policy.AttemptTimeout = time.Hour
	_, err := contract.New(t, httpretry.Config{Base: contract.Play(reset), Policy: policy,
		Observe: httpretry.LogEvents(slog.New(handler))}).RoundTrip(newGet(t).WithContext(ctx))
	require.Error(t, err)
	assert.Equal(t, 5, handler.handled)
	for _, got := range handler.got {
		assert.Equal(t, ctx, got)
	}
}

func TestLogEventsDefaults(t *testing.T) {
	logger, out := newLogger()
	previous := slog.Default()
	t.Cleanup(func() { slog.SetDefault(previous) })
	e := httpretry.Event{Request: newGet(t), Attempt: firstAttempt}
	early, none := newLogger()
	slog.SetDefault(early)
	observe := httpretry.LogEvents(nil)
	slog.SetDefault(logger)
	observe(t.Context(), e)
	assert.Contains(t, out.String(), "retrying request")
	assert.Empty(t, none.String(), "the default changed before the event")

	out.Reset()
	quiet := slog.New(slog.NewTextHandler(out, &slog.HandlerOptions{Level: slog.LevelWarn}))
	httpretry.LogEvents(quiet)(t.Context(), e)
	assert.Empty(t, out.String())
}

// The Event of a request that ends while it waits for a retry has the error of
// the wait.
func TestEventOfAWait(t *testing.T) {
	for reason, isOf := range map[httpretry.Reason]func(error) bool{
		httpretry.ReasonCanceled: func(err error) bool {
			return errors.Is(err, context.Canceled) && errors.Is(err, errMine)
		},
		httpretry.ReasonCooldown: func(err error) bool {
			_, ok := errors.AsType[*httpretry.CooldownError](err)
			return ok
		},
	} {
		t.Run(reason.String(), func(t *testing.T) {
			playScene(t, contract.RetryEvery(time.Minute), func(s *scene) {
				ctx, cancel := context.WithCancelCause(s.Context())
				defer cancel(nil)
				time.AfterFunc(time.Second, func() {
					if reason == httpretry.ReasonCanceled {
						cancel(errMine)
					} else {
						s.sendOnce(asksFor(3600))
					}
				})
				got := s.get(ctx, s503, s200)
				assert.True(s, isOf(got.err), "%v", got.err)
				last := s.Events[len(s.Events)-1]
				assert.Equal(s, reason, last.Reason)
				assert.Equal(s, 1, last.Attempt.Number)
				assert.True(s, isOf(last.Err), "%v", last.Err)
			})
		})
	}
}

// An Event has the wait that its response asks for, even if it is too long, or
// the rest of the cool-down that ended the request.
func TestEventAsked(t *testing.T) {
	fail := contract.RetryEvery(time.Second)
	fail.Cooldown = httpretry.CooldownFail
	for _, tt := range []struct {
		name    string
		cooling bool // another response has asked for an hour, ten minutes ago
		policy  httpretry.Policy
		steps   script
		want    []time.Duration // of each Event
		reason  httpretry.Reason
	}{
		{"no wait", false, contract.RetryEvery(time.Second), script{s503, s200},
			[]time.Duration{0, 0}, httpretry.ReasonSuccess},
		{"a wait", false, contract.RetryEvery(time.Second), script{asksFor(2), s200},
			[]time.Duration{2 * time.Second, 0}, httpretry.ReasonSuccess},
		{"too long", false, contract.RetryEvery(time.Second), script{asksFor(3600)},
			[]time.Duration{time.Hour}, httpretry.ReasonRetryAfter},
		{"attempts", false, httpretry.Policy{MaxAttempts: 1}, script{asksFor(2)},
			[]time.Duration{2 * time.Second}, httpretry.ReasonDisabled},
		{"of a success", false, contract.RetryEvery(time.Second),
			script{contract.Status(200, "Retry-After", "2")}, []time.Duration{0},
			httpretry.ReasonSuccess},
		{"an error while cooling down", true, contract.RetryEvery(time.Second), script{reset},
			[]time.Duration{50 * time.Minute}, httpretry.ReasonCooldown},
		{"a response while cooling down", true, contract.RetryEvery(time.Second), script{s500},
			[]time.Duration{50 * time.Minute}, httpretry.ReasonCooldown},
		{"unsent", true, fail, script{s200}, []time.Duration{50 * time.Minute},
			httpretry.ReasonCooldown},
	} {
		t.Run(tt.name, func(t *testing.T) {
			playScene(t, tt.policy, func(s *scene) {
				if tt.cooling {
					s.sendOnce(asksFor(3600))
					s.sleep(10 * time.Minute)
				}
				s.Events = nil
				s.get(s.Context(), tt.steps...)
				var got []time.Duration
				for _, e := range s.Events {
					got = append(got, e.Asked)
				}
				assert.Equal(s, tt.want, got)
				assert.Equal(s, tt.reason.String(), s.Reason().String())
			})
		})
	}
}

// A request that fails before its first attempt has an Event if its policy is
// the reason, and none if its caller is.
func TestEventBeforeTheFirstAttempt(t *testing.T) {
	closed := make(chan struct{})
	close(closed)
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		ctx    context.Context
		cancel chan struct{}
		key    string
		text   string
		events int
	}{
		"policy": {ctx: httpretry.WithPolicy(t.Context(), httpretry.Policy{MaxElapsed: -1}),
			text: "Policy.MaxElapsed", events: 1},
		"key": {
			ctx: t.Context(), key: "a\nb", text: "Policy.NewIdempotencyKey", events: 1},
		"context":        {ctx: done, text: "context canceled"},
		"Request.Cancel": {ctx: t.Context(), cancel: closed, text: "request canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			base, events := contract.Play(s200), new(contract.Record)
			policy := httpretry.Policy{
				NewIdempotencyKey: func(*http.Request) string { return tt.key }}
			req := contract.Request(t, "POST", "http://a.test/", "").WithContext(tt.ctx)
			req.Cancel = tt.cancel //nolint:staticcheck // http.Client sets it
			_, err := contract.Recorded(t, base, policy, events).RoundTrip(req)
			require.ErrorContains(t, err, tt.text)
			assert.Empty(t, base.Attempts())
			require.Len(t, events.Events, tt.events)
			if tt.events > 0 {
				assert.Zero(t, events.Events[0].Attempt.Number)
				assert.Less(t, events.Events[0].Elapsed, time.Minute, "since the request began")
				assert.Equal(t, httpretry.ReasonPermanent, events.Reason())
				assert.ErrorIs(t, err, events.Events[0].Err)
			}
		})
	}
}

// Elapsed and MaxElapsed count from the start of the request, however old the
// transport is.
func TestElapsedOfAnOldTransport(t *testing.T) {
	for limit, attempts := range map[time.Duration]int{0: 5, 2 * time.Second: 3} {
		contract.Bubble(t, limit.String(), func(t *testing.T) {
			base, events := contract.Play(s503), new(contract.Record)
			cfg := httpretry.Config{Base: base, Policy: contract.RetryEvery(time.Second)}
			cfg.Policy.MaxElapsed = limit
			if limit == 0 { // an Observe needs the start, too
				cfg.Observe = events.Observe
			}
			transport := contract.New(t, cfg)
			time.Sleep(time.Hour)
			contract.Send(t, transport, newGet(t))
			assert.Len(t, base.Attempts(), attempts)
			for i, e := range events.Events {
				assert.Equal(t, time.Duration(i)*time.Second, e.Elapsed)
			}
		})
	}
}

// Waited is how long requests really waited: for another request's cool-down,
// before a first attempt, and until a cancel. The base takes no time, so the
// sum is the time that a request took.
func TestWaited(t *testing.T) {
	patient := contract.RetryEvery(time.Second)
	patient.Cooldown = httpretry.CooldownWait
	playScene(t, contract.RetryEvery(time.Second), func(s *scene) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		took := map[string]time.Duration{} // by path
		send := func(
			path string, p httpretry.Policy, limit time.Duration, steps ...contract.Step,
		) {
			wg.Go(func() {
				begun := time.Now()
				ctx, cancel := context.WithCancel(httpretry.WithPolicy(s.Context(), p))
				defer cancel()
				time.AfterFunc(limit, cancel)
				req := contract.Request(s, "GET", "http://a.test"+path, "").WithContext(ctx)
				_ = s.do(req, steps...) // its end shows in the events
				mu.Lock()
				defer mu.Unlock()
				took[path] = time.Since(begun)
			})
		}
		retries := contract.RetryEvery(time.Second)
		send("/extended", retries, time.Hour, s503, s200)
		time.Sleep(500 * time.Millisecond)
		send("/asks", retries, time.Hour, asksFor(8), s200)
		synctest.Wait()
		send("/patient", patient, time.Hour, s200)
		send("/patient/canceled", patient, 2*time.Second, s200)
		send("/canceled", retries, 3*time.Second, s500, s200)
		send("/fails", retries, time.Hour, s503)
		wg.Wait()

		events := map[string][]httpretry.Event{}
		for _, e := range s.Events {
			path := e.Request.URL.Path
			events[path] = append(events[path], e)
		}
		require.Len(s, events, 6)
		for path, list := range events {
			var sum time.Duration
			for _, e := range list {
				sum += e.Waited
			}
			assert.Equal(s, took[path], sum, path)
			assert.Equal(s, took[path], list[len(list)-1].Elapsed, path)
		}
		extended := events["/extended"]
		require.Len(s, extended, 2)
		assert.Zero(s, extended[0].Waited)
		assert.Equal(s, time.Second, extended[0].Wait, "as planned")
		assert.Greater(s, extended[1].Waited, 8*time.Second)
		assert.Zero(s, extended[1].Wait)
		assert.Greater(s, events["/patient"][0].Waited, 8*time.Second-1)
		assert.Equal(s, 2*time.Second, events["/patient/canceled"][0].Waited)
		assert.Zero(s, events["/patient/canceled"][0].Attempt.Number)
		assert.Equal(s, time.Second, events["/fails"][4].Waited, "the last of four waits")
		assert.Equal(s, []time.Duration{0, 3 * time.Second},
			[]time.Duration{events["/canceled"][0].Waited, events["/canceled"][1].Waited})
	})
}

// The waits of resumes are in Waited, too, each in the Event that follows it.
// The time that the caller takes between two Reads is not.
func TestWaitedOfResumes(t *testing.T) {
	for name, tt := range map[string]struct {
		closed time.Duration // when the caller closes the body
		fails  bool
		waited []time.Duration
	}{
		"resumes": {time.Hour, false,
			[]time.Duration{0, 0, 3 * time.Second, 0, 3 * time.Second, 0, 3 * time.Second}},
		"Close": {2 * time.Second, true, []time.Duration{0, 0, 2 * time.Second}},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			// The second part is long enough to start the attempts over.
			o, policy, events := newOrigin(300_000, 10, 150_000, 10), resuming(),
				new(contract.Record)
			policy.Backoff = strategies.Constant{Wait: 3 * time.Second}
			resp := get(t, contract.Recorded(t, o, policy, events))
			time.Sleep(time.Minute)
			time.AfterFunc(tt.closed, func() { assert.NoError(t, resp.Body.Close()) })
			_, err := io.Copy(io.Discard, resp.Body)
			assert.Equal(t, tt.fails, err != nil, "%v", err)
			var got []time.Duration
			for _, e := range events.Events {
				got = append(got, e.Waited)
			}
			assert.Equal(t, tt.waited, got)
			time.Sleep(tt.closed)
		})
	}
}

// If the body ends a request, the error and the log name the fields that let it
// be sent again. A GetBody that fails has an error of its own besides.
func TestBodyIsNamed(t *testing.T) {
	const hint = "a retry needs a body from Request.GetBody, or one that fits into Policy.ReplayBuffer"
	gone := errors.New("the file is gone")
	send := func(getBody func() (io.ReadCloser, error), steps ...contract.Step) (log string,
		err error) {
		logger, out := newLogger()
		policy := contract.RetryEvery(0)
		policy.ReplayBuffer = -1
		req := contract.Streamed(t, "PUT", "http://a.test/", contract.Counted("text"))
		req.GetBody = getBody
		err = exchange(t, contract.New(t, httpretry.Config{Base: contract.Play(steps...),
			Policy: policy, Observe: httpretry.LogEvents(logger)}), req)
		return out.String(), err
	}
	unread := contract.Step{Status: 503, Unread: true}
	for text, steps := range map[string]script{
		"1 attempt":  {reset},
		"2 attempts": {unread, reset},
	} {
		log, err := send(nil, steps...)
		require.EqualError(t, err, "httpretry: gave up after "+text+" (not_replayable): "+
			contract.ErrReset.Error()+"; hint: "+hint)
		assert.Equal(t, &httpretry.Error{Attempts: len(steps),
			Reason: httpretry.ReasonNotReplayable, Err: contract.ErrReset}, err)
		assert.Contains(t, log, `hint="`+hint+`" reason=not_replayable`)
	}
	log, err := send(func() (io.ReadCloser, error) { return nil, gone }, reset)
	require.EqualError(t, err, "httpretry: gave up after 1 attempt (not_replayable): "+
		contract.ErrReset.Error()+"; the body cannot be sent again: the file is gone; hint: "+hint)
	require.ErrorIs(t, err, gone)
	assert.Contains(t, log, `error="the file is gone" hint="`+hint+`" reason=not_replayable`)

	log, err = send(nil, s503)
	require.NoError(t, err, "a response is the caller's")
	assert.Contains(t, log,
		`status="503 Service Unavailable" hint="`+hint+`" reason=not_replayable`)
}

// A request that is not idempotent is unprocessed only if each of its attempts
// is. That is known of an error of a single attempt, too, which otherwise is
// Base's own, and of a response.
func TestUnprocessed(t *testing.T) {
	withKey := func(p *httpretry.Policy) { p.NewIdempotencyKey = httpretry.RandomKey }
	once := func(p *httpretry.Policy) { p.MaxAttempts = 1 }
	stated := contract.Fails(httpretry.WithOutcome(contract.ErrReset, httpretry.Unprocessed))
	for _, tt := range []struct {
		name  string
		steps script
		set   func(*httpretry.Policy)
		want  bool
	}{
		{"refused", script{refused}, nil, true},
		{"refused, once", script{refused}, once, true},
		{"reset, once", script{reset}, once, false},
		{"stated by a layer", script{stated}, once, true},
		{"refused, then reset", script{refused, reset}, nil, false},
		{"with a key", script{refused}, withKey, false},
		{"425", script{s425}, nil, true},
		{"425, once", script{s425}, once, true},
		{"425, then 503", script{s425, s503}, nil, false},
		{"503", script{s503}, nil, false},
		{"404", script{s404}, nil, false},
		{"200", script{s200}, nil, false},
		{"not sent", nil, func(p *httpretry.Policy) {
			p.NewIdempotencyKey = func(*http.Request) string { return "\n" }
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			policy := contract.RetryEvery(0)
			if tt.set != nil {
				tt.set(&policy)
			}
			client := &http.Client{Transport: contract.With(t, contract.Play(tt.steps...), policy)}
			resp, err := client.Do(contract.Request(t, "POST", "http://a.test/", "text"))
			got := httpretry.IsUnprocessed(err)
			if err == nil {
				got = httpretry.ResultOf(resp).Unprocessed
				contract.ReadBody(t, resp)
			}
			assert.Equal(t, tt.want, got, "%v", err)
			assert.False(t, httpretry.IsUnprocessed(errors.Join(err, contract.ErrReset)),
				"one of several errors is not about all")
		})
	}
	assert.False(t, httpretry.IsUnprocessed(contract.ErrRefused), "not of a RetryTransport")
}

// The error of a single attempt has Base's text, and is Base's by errors.Is and
// errors.As, if it also tells that the request is unprocessed.
func TestErrorOfAnUnprocessedAttempt(t *testing.T) {
	policy := httpretry.Policy{MaxAttempts: 1}
	late := &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}
	transport := contract.With(t, contract.Play(contract.Fails(late)), policy)
	_, err := transport.RoundTrip(contract.Request(t, "POST", "http://a.test/", "text"))
	require.ErrorIs(t, err, late)
	require.EqualError(t, err, late.Error())
	assert.True(t, httpretry.IsUnprocessed(err))
	assert.True(t, (&url.Error{Err: err}).Timeout())
	assert.True(t, (&url.Error{Err: err}).Temporary())

	_, err = transport.RoundTrip(newGet(t))
	assert.Equal(t, late, err)
	layered := fmt.Errorf("layer: %w", late)
	assert.True(t, (&httpretry.Error{Err: layered}).Timeout(), "of several attempts")
}

// The error of a single attempt is Base's own if the caller cancels after the
// decision, or by a Request.Cancel, which has no error that Base's could hide.
func TestErrorOfOneAttemptThatIsCanceled(t *testing.T) {
	policy, canceled := contract.RetryEvery(0), make(chan struct{})
	failure := errors.New("net/http: request canceled")
	base := contract.BaseFunc(
		func(*http.Request) (*http.Response, error) { close(canceled); return nil, failure })
	req, events := newGet(t), new(contract.Record)
	req.Cancel = canceled //nolint:staticcheck // http.Client sets it
	_, err := contract.Recorded(t, base, policy, events).RoundTrip(req)
	assert.Equal(t, failure, err)
	assert.Equal(t, httpretry.ReasonCanceled, events.Reason())

	policy.MaxAttempts = 1
	ctx, cancel := context.WithCancel(t.Context())
	var reasons []httpretry.Reason
	observe := func(_ context.Context, e httpretry.Event) {
		reasons = append(reasons, e.Reason)
		cancel()
	}
	_, err = contract.New(t,
		httpretry.Config{Base: contract.Play(reset), Policy: policy, Observe: observe}).
		RoundTrip(newGet(t).WithContext(ctx))
	assert.Equal(t, contract.ErrReset, err)
	assert.Equal(t, []httpretry.Reason{httpretry.ReasonDisabled}, reasons)
}

// A Reason for which a field or a call allows a retry has a hint that names it.
// The log and the text of an Error have it, and docs/operations.md lists all.
func TestHints(t *testing.T) {
	var table strings.Builder
	table.WriteString("| reason | hint |\n|---|---|\n")
	for _, r := range reasons {
		hint := r.reason.Hint()
		err := &httpretry.Error{Attempts: 2, Reason: r.reason, Err: io.EOF}
		unsent := &httpretry.Error{Reason: r.reason, Err: io.EOF}
		logger, out := newLogger()
		e := httpretry.Event{Request: newGet(t), Attempt: firstAttempt, Reason: r.reason}
		httpretry.LogEvents(logger)(t.Context(), e)
		text := fmt.Sprintf("httpretry: gave up after 2 attempts (%v): EOF", r.reason)
		if r.hint == "" {
			assert.Empty(t, hint, "%s: add a part of its hint to the table reasons", r.name)
			assert.EqualError(t, err, text)
			assert.EqualError(t, unsent, "httpretry: not sent: EOF")
			assert.NotContains(t, out.String(), "hint", r.name)
			continue
		}
		assert.Contains(t, hint, r.hint, r.name)
		assert.EqualError(t, err, text+"; hint: "+hint)
		assert.EqualError(t, unsent, "httpretry: not sent: EOF; hint: "+hint)
		assert.Contains(t, out.String(), fmt.Sprintf(`hint=%q reason=%v`, hint, r.reason))
		table.WriteString(fmt.Sprintf("| `%v` | %s |\n", r.reason, hint))
	}
	assert.Empty(t, httpretry.Reason(200).Hint())
	operations, err := os.ReadFile("docs/operations.md")
	require.NoError(t, err)
	assert.Contains(t, string(operations), table.String(), "docs/operations.md: the table of hints")
}

// Observers calls each function in order, with the Event and the context that
// it got.
func TestObservers(t *testing.T) {
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, 7)
	for _, names := range []string{"", "--", "-b", "c-ab-", "aa"} { // "-" stands for nil
		var got, want []string
		fs := make([]func(context.Context, httpretry.Event), len(names))
		for i, name := range strings.Split(names, "") {
			if name != "-" {
				fs[i] = func(ctx context.Context, e httpretry.Event) {
					end := fmt.Sprint(ctx.Value(key{}), e.Attempt.Number, e.Reason)
					got = append(got, name+end)
				}
			}
		}
		observe := httpretry.Observers(fs...)
		clear(fs) // which Observers has copied
		called := strings.ReplaceAll(names, "-", "")
		assert.Equal(t, called == "", observe == nil)
		transport := contract.New(t, httpretry.Config{
			Base: contract.Play(s503, s200), Policy: contract.RetryEvery(0), Observe: observe})
		contract.Send(t, transport, newGet(t).WithContext(ctx))
		for _, end := range []string{"7 1 none", "7 2 success"} {
			for name := range strings.SplitSeq(called, "") {
				want = append(want, name+end)
			}
		}
		assert.Equal(t, want, got)
	}
}

// Status returns the status of a response, or one of a few texts for an error.
func TestEventStatus(t *testing.T) {
	for _, tt := range []struct {
		e    httpretry.Event
		want string
	}{
		{httpretry.Event{Response: &http.Response{StatusCode: 200}}, "200 OK"},
		{httpretry.Event{Response: &http.Response{StatusCode: 503, Status: "503 secret"}},
			"503 Service Unavailable"},
		{httpretry.Event{Response: &http.Response{StatusCode: 599}}, "599"},
		{httpretry.Event{Response: &http.Response{StatusCode: 999}}, "999"},
		{httpretry.Event{Response: &http.Response{StatusCode: 1000}}, "invalid status"},
		{httpretry.Event{Response: &http.Response{StatusCode: 99}}, "invalid status"},
		// If there is a response, an error does not count.
		{httpretry.Event{Response: &http.Response{StatusCode: 206}, Err: io.EOF,
			Reason: httpretry.ReasonNotResumable}, "206 Partial Content"},
		{httpretry.Event{Err: context.Canceled}, "canceled"},
		{httpretry.Event{Err: io.EOF, Reason: httpretry.ReasonCanceled}, "canceled"},
		{httpretry.Event{Err: &httpretry.CooldownError{}}, "host cooling down"},
		{httpretry.Event{Err: context.DeadlineExceeded}, "timeout"},
		{httpretry.Event{Err: &net.OpError{Op: "dial", Err: os.ErrDeadlineExceeded}}, "timeout"},
		{httpretry.Event{Err: unknownHost}, "name lookup failed"},
		{httpretry.Event{Err: x509.UnknownAuthorityError{}}, "TLS failed"},
		{httpretry.Event{Err: &net.OpError{Op: "remote error", Err: io.EOF}}, "TLS failed"},
		{httpretry.Event{Err: contract.ErrRefused}, "connection failed"},
		{httpretry.Event{Err: contract.ErrReset}, "connection broken"},
		{httpretry.Event{Err: httpretry.WithOutcome(io.ErrUnexpectedEOF, final)},
			"connection broken"},
		{httpretry.Event{Err: errors.New("secret")}, "failed"},
		{httpretry.Event{}, "failed"},
	} {
		assert.Equal(t, tt.want, tt.e.Status(), "%v", tt.e.Err)
		if tt.e.Err != nil {
			tt.e.Err = fmt.Errorf("GET http://user:secret@a.test/?secret: %w", tt.e.Err)
			assert.Equal(t, tt.want, tt.e.Status(), "%v", tt.e.Err)
		}
	}
	idle := httpretry.Event{Err: errors.New("http: server closed idle connection")}
	assert.Equal(t, "connection broken", idle.Status())
}
