package httpretry_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/strategies"
)

// coolBase answers as a request's URL says: its path is the status of the first
// attempt, and that of those that follow if there is a second, else 200; its
// query is the header of the first answer, with "again" of all, and "takes" is how
// long they take. It notes when each host and path was asked.
type coolBase struct {
	start time.Time
	mu    sync.Mutex
	asked map[string][]time.Duration
}

func (b *coolBase) RoundTrip(req *http.Request) (*http.Response, error) {
	b.mu.Lock()
	place := req.URL.Host + req.URL.Path
	b.asked[place] = append(b.asked[place], time.Since(b.start))
	b.mu.Unlock()
	if req.Body != nil {
		_, _ = io.Copy(io.Discard, req.Body)
		_ = req.Body.Close()
	}
	first, later, _ := strings.Cut(strings.Trim(req.URL.Path, "/"), "/")
	query := req.URL.Query()
	if httpretry.Attempt(req.Context()) > 1 {
		first = cmp.Or(later, "200")
		if !query.Has("again") {
			query = nil
		}
	}
	query.Del("again")
	takes, _ := time.ParseDuration(cmp.Or(query.Get("takes"), "0s"))
	select {
	case <-time.After(takes):
	case <-req.Context().Done():
		return nil, req.Context().Err()
	}
	query.Del("takes")
	var code int
	if _, err := fmt.Sscan(first, &code); err != nil {
		return nil, errCoolBase
	}
	return coolAnswer(code, http.Header(query)), nil
}

var errCoolBase = errors.New("connection lost")

func coolAnswer(code int, header http.Header) *http.Response {
	if header == nil {
		header = http.Header{}
	}
	body := io.NopCloser(strings.NewReader("text"))
	return &http.Response{StatusCode: code, ProtoMajor: 1, ProtoMinor: 1, Header: header, Body: body, ContentLength: 4}
}

// at returns when a host and path was asked.
func (b *coolBase) at(place string) []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.asked[place])
}

// coolScene is a transport over a coolBase, in virtual time.
type coolScene struct {
	*testing.T
	*coolBase
	record
	transport http.RoundTripper
}

func coolScenes(t *testing.T, policy httpretry.Policy, play func(*coolScene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &coolScene{T: t, coolBase: &coolBase{start: time.Now(), asked: map[string][]time.Duration{}}}
		s.transport = contract.New(t, httpretry.Config{Base: s.coolBase, Policy: policy, Observe: s.observe})
		play(s)
		synctest.Wait()
	})
}

// coolResult is what a request ended with, and when.
type coolResult struct {
	status int
	err    error
	at     time.Duration
}

func (s *coolScene) do(req *http.Request) coolResult {
	resp, err := s.transport.RoundTrip(req)
	r := coolResult{err: err, at: time.Since(s.start)}
	if err == nil {
		r.status = resp.StatusCode
		assert.NoError(s, resp.Body.Close())
	}
	return r
}

// get asks a.test.
func (s *coolScene) get(ctx context.Context, path string) coolResult {
	return s.do(request(s, "GET", "http://a.test"+path, "").WithContext(ctx))
}

// get with a policy of its own.
func (s *coolScene) with(p httpretry.Policy, path string) coolResult {
	return s.get(httpretry.WithPolicy(s.Context(), p), path)
}

// once asks a.test without a retry, whatever cools down.
func (s *coolScene) once(path string) coolResult {
	return s.with(httpretry.Policy{MaxAttempts: 1}, path)
}

// left asks how long a.test still wants to be left alone.
func (s *coolScene) left() time.Duration {
	return s.leftOf(s.Context(), httpretry.Policy{}, "http://a.test/200")
}

// leftOf sends nothing if the answer is not 0: or else it would end what it
// asks for.
func (s *coolScene) leftOf(ctx context.Context, p httpretry.Policy, url string) time.Duration {
	s.Helper()
	p.Cooldown = httpretry.CooldownFail
	got := s.do(request(s, "GET", url, "").WithContext(httpretry.WithPolicy(ctx, p)))
	var cooling *httpretry.CooldownError
	if !errors.As(got.err, &cooling) {
		require.NoError(s, got.err)
		return 0
	}
	return time.Until(cooling.Until)
}

func (s *coolScene) asleep(d time.Duration) { time.Sleep(d); synctest.Wait() }

// coolPath is a path to an answer with a status and a header.
func coolPath(path string, header ...string) string {
	values := url.Values{}
	for i := 0; i < len(header); i += 2 {
		values.Add(header[i], header[i+1])
	}
	return path + "?" + values.Encode()
}

// coolCrowd sends 100 requests a second for 30 seconds to a host that answers
// 429 with a wait of 30 seconds until those are over. It returns their errors,
// and when requests arrived at the host.
func coolCrowd(t *testing.T, cooldown httpretry.Cooldown) (errs []error, arrivals []time.Duration) {
	const requests = 3000
	began := time.Now()
	over := began.Add(30*time.Second + 10*time.Millisecond)
	var mu sync.Mutex
	base := baseFunc(func(*http.Request) (*http.Response, error) {
		mu.Lock()
		arrivals = append(arrivals, time.Since(began))
		mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		if time.Now().Before(over) {
			return coolAnswer(429, header("Retry-After", "30")), nil
		}
		return coolAnswer(200, nil), nil
	})
	client := &http.Client{Transport: contract.New(t, httpretry.Config{Base: base, Policy: httpretry.Policy{Cooldown: cooldown}})}
	errs = make([]error, requests)
	var wg sync.WaitGroup
	for i := range requests {
		time.Sleep(10 * time.Millisecond)
		wg.Go(func() {
			resp, err := client.Get("http://A.test:80/")
			if err == nil {
				err = resp.Body.Close()
				if resp.StatusCode != 200 {
					err = errCoolBase
				}
			}
			errs[i] = err
		})
	}
	wg.Wait()
	return errs, arrivals
}

// A host that says "30 s" is asked by 100 requests a second. It hears next to
// nothing meanwhile, and all of them afterwards, not at once.
func TestCooldownMeasured(t *testing.T) {
	for _, mode := range []httpretry.Cooldown{httpretry.CooldownOff, httpretry.CooldownWait, httpretry.CooldownFail} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				errs, arrivals := coolCrowd(t, mode)
				const over = 30 * time.Second
				meanwhile := 0
				buckets := map[time.Duration]int{}
				for _, at := range arrivals {
					if at < over {
						meanwhile++
					} else {
						buckets[at/(100*time.Millisecond)]++
					}
				}
				fullest := 0
				for _, n := range buckets {
					fullest = max(fullest, n)
				}
				failed := slices.DeleteFunc(slices.Clone(errs), func(err error) bool { return err == nil })
				last := slices.Max(arrivals)
				t.Logf("%d requests: %d sent within 30 s, %d after until %v, at most %d in 100 ms; %d failed",
					len(errs), meanwhile, len(arrivals)-meanwhile, last, fullest, len(failed))
				switch mode {
				case httpretry.CooldownOff:
					assert.GreaterOrEqual(t, meanwhile, 2990, "first attempts are sent")
				case httpretry.CooldownWait:
					assert.LessOrEqual(t, meanwhile, 5)
					assert.Empty(t, failed)
					assert.LessOrEqual(t, last, over+7600*time.Millisecond, "a quarter of what was asked")
					assert.LessOrEqual(t, fullest, 4*len(errs)/75, "of 75 such buckets")
				case httpretry.CooldownFail:
					assert.LessOrEqual(t, meanwhile, 5)
					assert.Greater(t, len(failed), 2950)
					for _, err := range failed {
						coolAssertRefused(t, err, began.Add(30*time.Second), began.Add(31*time.Second))
					}
				}
			})
		})
	}
}

// coolAssertRefused checks the error of a request to a.test that was not sent.
func coolAssertRefused(t testing.TB, err error, earliest, latest time.Time) {
	t.Helper()
	var e *httpretry.Error
	var cooling *httpretry.CooldownError
	if assert.ErrorAs(t, err, &e) && assert.ErrorAs(t, err, &cooling) {
		assert.Equal(t, []any{0, httpretry.ReasonCooldown}, []any{e.Attempts, e.Reason})
		assert.Equal(t, "a.test", cooling.Host)
		assert.False(t, cooling.Until.Before(earliest) || cooling.Until.After(latest), "until %v", cooling.Until)
		assert.Contains(t, err.Error(), "httpretry: not sent: a.test asked to be left alone until 2000-01-01T")
		assert.False(t, e.Timeout())
	}
}

// What a request that fails at 0 s and would be repeated at 1 s makes of a host
// that, to another request, says just before that was decided, or at 0.5 s, that
// it wants to be left alone for 30 s.
func TestRetriesHearOfCooldowns(t *testing.T) {
	const soon, later = time.Nanosecond, 500 * time.Millisecond
	second := every(time.Second)
	short, elapsed := second, second
	short.MaxRetryAfter = 10 * time.Second
	elapsed.MaxElapsed = 20 * time.Second
	for _, tt := range []struct {
		name     string
		policy   httpretry.Policy
		deadline time.Duration
		at       time.Duration // of the other answer
		path     string
		reason   httpretry.Reason
		want     coolResult // at: the earliest
	}{
		{"waits", second, 0, soon, "/500", httpretry.ReasonFinal, coolResult{200, nil, 30 * time.Second}},
		{"waits", second, 0, later, "/500", httpretry.ReasonFinal, coolResult{200, nil, 30500 * time.Millisecond}},
		{"waits after an error", second, 0, later, "/error", httpretry.ReasonFinal, coolResult{200, nil, 30500 * time.Millisecond}},
		{"too long", short, 0, soon, "/500", httpretry.ReasonCooldown, coolResult{500, nil, 0}},
		{"too long", short, 0, soon, "/error", httpretry.ReasonCooldown, coolResult{0, errCoolBase, 0}},
		{"too long", short, 0, later, "/500", httpretry.ReasonCooldown, coolResult{0, &httpretry.CooldownError{}, time.Second}},
		{"too long", short, 0, later, "/error", httpretry.ReasonCooldown, coolResult{0, errCoolBase, time.Second}},
		{"deadline", second, 20 * time.Second, soon, "/500", httpretry.ReasonDeadline, coolResult{500, nil, 0}},
		{"deadline", second, 20 * time.Second, later, "/500", httpretry.ReasonCooldown, coolResult{0, &httpretry.CooldownError{}, time.Second}},
		{"at the deadline", second, 30*time.Second + later, later, "/500", httpretry.ReasonCooldown, coolResult{0, &httpretry.CooldownError{}, time.Second}},
		{"deadline is later", second, 31*time.Second + later, later, "/500", httpretry.ReasonFinal, coolResult{200, nil, 30500 * time.Millisecond}},
		{"elapsed", elapsed, 0, soon, "/500", httpretry.ReasonDeadline, coolResult{500, nil, 0}},
		{"elapsed", elapsed, 0, later, "/500", httpretry.ReasonCooldown, coolResult{0, &httpretry.CooldownError{}, time.Second}},
	} {
		for _, mode := range []httpretry.Cooldown{httpretry.CooldownOff, httpretry.CooldownWait, httpretry.CooldownFail} {
			t.Run(fmt.Sprintf("%s/%v/%v/%v", tt.name, tt.at, tt.path, mode), func(t *testing.T) {
				tt.policy.Cooldown = mode
				coolScenes(t, tt.policy, func(s *coolScene) { coolRetry(s, tt.at, tt.deadline, tt.path, tt.want, tt.reason) })
			})
		}
	}
}

// coolRetry plays a row of the table above.
func coolRetry(s *coolScene, at, deadline time.Duration, path string, want coolResult, reason httpretry.Reason) {
	ctx := s.Context()
	if deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	time.AfterFunc(at, func() { s.once("/429?Retry-After=30") })
	if at == time.Nanosecond { // the other is answered while this one is on its way
		path += "?takes=2ns"
	}
	got := s.get(ctx, path)
	if want.err == nil {
		assert.NoError(s, got.err)
		assert.Equal(s, want.status, got.status)
	}
	last := want.at + time.Millisecond
	if want.status == 200 {
		last = want.at + 7500*time.Millisecond + 1
		assert.Len(s, s.at("a.test"+strings.TrimSuffix(path, "?takes=2ns")), 2)
	}
	assert.True(s, got.at >= want.at && got.at <= last, "%v, not from %v to %v", got.at, want.at, last)
	assert.Equal(s, reason, s.reason())
	if reason == httpretry.ReasonCooldown && want.at > 0 {
		var e *httpretry.Error
		var cooling *httpretry.CooldownError
		require.ErrorAs(s, got.err, &e)
		assert.Equal(s, []any{1, reason}, []any{e.Attempts, e.Reason})
		assert.ErrorAs(s, got.err, &cooling)
		assert.Regexp(s, `^httpretry: gave up after 1 attempt \(host cooling down\): a.test asked .* \(last attempt: (status 500|connection lost)\)$`, got.err.Error())
	}
	if want.err == errCoolBase {
		assert.ErrorIs(s, got.err, errCoolBase)
	}
}

// A host that asks for more again and again does not hold a retry for ever.
func TestRollingCooldown(t *testing.T) {
	policy := every(time.Second)
	policy.MaxRetryAfter = 2 * time.Minute
	coolScenes(t, policy, func(s *coolScene) {
		var wg sync.WaitGroup
		over := make(chan struct{})
		wg.Go(func() {
			for range time.Tick(5 * time.Second) {
				select {
				case <-over:
					return
				default:
					s.once("/429?Retry-After=30")
				}
			}
		})
		defer wg.Wait()
		defer close(over)
		time.Sleep(4500 * time.Millisecond)
		for i, mode := range []httpretry.Cooldown{httpretry.CooldownWait, httpretry.CooldownOff, httpretry.CooldownWait} {
			began := time.Since(s.start)
			policy.Cooldown = mode
			got := s.with(policy, "/500")
			var e *httpretry.Error
			require.ErrorAs(s, got.err, &e)
			assert.Equal(s, httpretry.ReasonCooldown, e.Reason)
			assert.Equal(s, []int{1, 1, 0}[i], e.Attempts)
			took := got.at - began
			assert.True(s, took > time.Minute && took < 4*time.Minute, "%v", took)
		}
	})
}

// coolAnswers are answers to a request, and what they begin.
type coolAnswers struct {
	policy httpretry.Policy
	method string
	header []string
	codes  string
	want   time.Duration
}

func coolBeginnings() []coolAnswers {
	const none, some = 0, 30 * time.Second
	github := func(resp *http.Response, err error) httpretry.Outcome {
		if err == nil && resp.StatusCode == 403 {
			return httpretry.Transient
		}
		return httpretry.Classify(resp, err)
	}
	final := func(*http.Response, error) httpretry.Outcome { return httpretry.Final }
	return []coolAnswers{
		{codes: "429 503", header: []string{"Retry-After", "30"}, want: some},
		{codes: "200 301 400 403 404 408 413 425 500 502 504 529", header: []string{"Retry-After", "30"}, want: none},
		{codes: "403", header: []string{"Retry-After", "30"}, policy: httpretry.Policy{Classify: github}, want: some},
		{codes: "403", header: []string{"X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", "30"}, policy: httpretry.Policy{Classify: github}, want: some},
		{codes: "403", header: []string{"Retry-After", "30"}, policy: httpretry.Policy{Classify: final}, want: none},
		{codes: "429 503", header: []string{"Retry-After", "30"}, policy: httpretry.Policy{Classify: final}, want: some},
		{codes: "200 204 404", header: []string{"X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", "30"}, want: none},
		{codes: "200 404", header: []string{"Ratelimit", `"default";r=0;t=30`}, want: none},
		{codes: "429 503", header: []string{"Ratelimit", `"default";r=0;t=30`}, want: some},
		{codes: "429 503", header: []string{"Ratelimit", `"default";r=1;t=30`}, want: none},
		{codes: "429 503", header: []string{"X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", "30"}, want: some},
		{codes: "429 503", header: []string{"X-Ratelimit-Remaining", "1", "X-Ratelimit-Reset", "30"}, want: none},
		{codes: "429 503", header: []string{"Retry-After-Ms", "1"}, want: time.Millisecond},
		{codes: "429 503", want: none},
		{codes: "429 503", header: []string{"Retry-After", "0"}, want: none},
		{codes: "429 503", header: []string{"Retry-After", "-30"}, want: none},
		{codes: "429 503", header: []string{"Retry-After", "soon"}, want: none},
		{codes: "429 503", header: []string{"Retry-After", "Fri, 31 Dec 1999 23:59:59 GMT"}, want: none},
		{codes: "429 503", header: []string{"Retry-After", "Sat, 01 Jan 2000 00:00:30 GMT"}, want: some},
		{codes: "429 503", header: []string{"Retry-After", "3600"}, want: time.Hour},
		{codes: "429 503", header: []string{"Retry-After", "3601"}, want: time.Hour},
		{codes: "429 503", header: []string{"Retry-After", "99999999999999999999999"}, want: time.Hour},
		// Those that nobody repeats say so, too.
		{codes: "429 503", method: "POST", header: []string{"Retry-After", "30"}, want: some},
		{codes: "429 503", header: []string{"Retry-After", "30", "X-Should-Retry", "false"}, want: some},
		{codes: "429 503", header: []string{"Retry-After", "30"}, policy: httpretry.Policy{MaxAttempts: 1}, want: some},
		{codes: "500/429 500/503", header: []string{"Retry-After", "30", "again", ""}, policy: httpretry.Policy{MaxAttempts: 2, MaxRetryAfter: time.Hour}, want: some},
	}
}

// Which answers begin a cool-down, and how long it lasts.
func TestWhatBeginsCooldowns(t *testing.T) {
	for _, tt := range coolBeginnings() {
		tt.policy.Backoff = strategies.Constant{}
		tt.policy.MaxRetryAfter = cmp.Or(tt.policy.MaxRetryAfter, time.Nanosecond) // so that nothing is repeated
		for code := range strings.FieldsSeq(tt.codes) {
			t.Run(fmt.Sprint(code, tt.header, tt.method, tt.policy.MaxAttempts), func(t *testing.T) {
				coolScenes(t, tt.policy, func(s *coolScene) {
					s.do(request(s, cmp.Or(tt.method, "GET"), coolPath("http://a.test/"+code, tt.header...), ""))
					assert.Equal(s, tt.want, s.left())
					time.Sleep(tt.want)
					assert.Zero(s, s.left())
				})
			})
		}
	}
}

// The longest answer counts, and none for more than an hour after the last.
func TestCooldownsAddUp(t *testing.T) {
	for _, tt := range []struct {
		name  string
		asked []int // seconds, one answer every ten
		want  time.Duration
	}{
		{"longer", []int{30, 60}, 60 * time.Second},
		{"shorter", []int{60, 30}, 50 * time.Second},
		{"nothing", []int{60, 0}, 50 * time.Second},
		{"after the end", []int{1, 30}, 30 * time.Second},
		{"absurd", []int{1e6}, time.Hour},
		{"absurd, again", []int{1e6, 1e6}, time.Hour},
		{"absurd, once", []int{1e6, 30}, time.Hour - 10*time.Second},
	} {
		t.Run(tt.name, func(t *testing.T) {
			coolScenes(t, httpretry.Policy{}, func(s *coolScene) {
				for i, asked := range tt.asked {
					if i > 0 {
						time.Sleep(10 * time.Second)
					}
					s.once(fmt.Sprintf("/429?Retry-After=%d", asked))
				}
				assert.Equal(s, tt.want, s.left())
			})
		})
	}
}

// coolSent is a request without a retry, to any host.
type coolSent struct {
	at  time.Duration
	url string
}

// What ends a cool-down that begins at 10 s and lasts until 60 s: a success that
// was begun after the last answer that asks for one. Forty requests that wait for
// it then arrive spread out, as they do when nothing ends it.
func TestSuccessEndsCooldowns(t *testing.T) {
	const end = 60 * time.Second
	for _, tt := range []struct {
		name string
		sent []coolSent
		want time.Duration // when the cool-down ends
	}{
		{"nothing", nil, end},
		{"success", []coolSent{{20 * time.Second, "a.test/200?takes=1s"}}, 21 * time.Second},
		{"success, spelled otherwise", []coolSent{{20 * time.Second, "A.TEST.:80/204"}}, 20 * time.Second},
		{"redirect", []coolSent{{20 * time.Second, "a.test/304"}}, 20 * time.Second},
		{"success at the last moment", []coolSent{{end - time.Millisecond, "a.test/200"}}, end - time.Millisecond},
		{"success when it is over", []coolSent{{0, "b.test/429?Retry-After=600"}, {end + 10*time.Millisecond, "a.test/200"}}, end},
		{"another's success", []coolSent{{20 * time.Second, "b.test/200"}, {20 * time.Second, "a.test:81/200"}}, end},
		{"failures", []coolSent{
			{20 * time.Second, "a.test/400"}, {21 * time.Second, "a.test/404"}, {22 * time.Second, "a.test/500"},
			{23 * time.Second, "a.test/429"}, {24 * time.Second, "a.test/error"}}, end},
		{"success that was on its way", []coolSent{{5 * time.Second, "a.test/200?takes=10s"}}, end},
		{"another cool-down on its way", []coolSent{{5 * time.Second, "a.test/429?Retry-After=40&takes=15s"}}, end},
		{"success that was on its way at the last answer", []coolSent{
			{12 * time.Second, "a.test/200?takes=10s"}, {15 * time.Second, "a.test/429?Retry-After=1"}}, end},
		{"success after the last answer", []coolSent{
			{12 * time.Second, "a.test/429?Retry-After=1"}, {15 * time.Second, "a.test/200"}}, 15 * time.Second},
		{"success, and another cool-down", []coolSent{
			{20 * time.Second, "a.test/200"}, {20*time.Second + 1, "a.test/429?Retry-After=40"}}, end},
	} {
		t.Run(tt.name, func(t *testing.T) {
			coolScenes(t, httpretry.Policy{}, func(s *coolScene) { coolEnd(s, tt.sent, tt.want) })
		})
	}
}

// coolEnd plays a row of the table above.
func coolEnd(s *coolScene, others []coolSent, want time.Duration) {
	const spread = 12500 * time.Millisecond // a quarter of what was asked
	off := httpretry.WithPolicy(s.Context(), httpretry.Policy{MaxAttempts: 1})
	wait := httpretry.WithPolicy(s.Context(), httpretry.Policy{Cooldown: httpretry.CooldownWait})
	var wg sync.WaitGroup
	for _, other := range append(others, coolSent{10 * time.Second, "a.test/429?Retry-After=50"}) {
		wg.Go(func() {
			time.Sleep(other.at)
			s.do(request(s, "GET", "http://"+other.url, "").WithContext(off))
		})
	}
	time.Sleep(11 * time.Second)
	for range 40 {
		wg.Go(func() { assert.Equal(s, 200, s.get(wait, "/200/waited").status) })
	}
	s.asleep(want - 11*time.Second - 1)
	assert.NotZero(s, s.left())
	s.asleep(2)
	assert.Zero(s, s.left())
	wg.Wait()
	at := s.at("a.test/200/waited")
	require.Len(s, at, 40)
	slices.Sort(at)
	assert.GreaterOrEqual(s, at[0], want)
	assert.LessOrEqual(s, at[39], want+spread)
	assert.Greater(s, at[39]-at[0], spread/2, "spread out: %v", at)
	assert.Greater(s, at[30]-at[10], spread/10, "spread out: %v", at)
}

// A retry whose wait began before the cool-down is woken by its end, too. One
// that was told to wait that long is not: the answer was its own. A success of a
// retry that was on its way ends nothing.
func TestSuccessWakesRetries(t *testing.T) {
	coolScenes(t, every(time.Second), func(s *coolScene) {
		var wg sync.WaitGroup
		results := make([]coolResult, 4)
		for i, r := range []coolSent{
			{9500 * time.Millisecond, "/500"},
			{11 * time.Second, "/500/204"},
			{10 * time.Second, "/429/201?Retry-After=50"},
			{5 * time.Second, "/500/202?takes=3s&again="}, // twice
		} {
			wg.Go(func() {
				time.Sleep(r.at)
				results[i] = s.get(s.Context(), r.url)
			})
		}
		s.asleep(20 * time.Second)
		assert.NotZero(s, s.left(), "although there was a success")
		s.once("/200")
		wg.Wait()
		assert.Equal(s, []int{200, 204, 201, 202}, []int{results[0].status, results[1].status, results[2].status, results[3].status})
		assert.Equal(s, 12*time.Second, results[3].at)
		for i, from := range []time.Duration{20 * time.Second, 60 * time.Second, 60 * time.Second} {
			assert.True(s, results[i].at >= from && results[i].at <= from+12500*time.Millisecond, "%d: %v", i, results[i].at)
		}
	})
}

// Hazard I9: retries that wait for another's cool-down come back spread out, too.
func TestCooldownSpreadsRetries(t *testing.T) {
	coolScenes(t, every(time.Second), func(s *coolScene) {
		s.once("/429?Retry-After=40")
		var wg sync.WaitGroup
		at := make([]time.Duration, 40)
		for i := range at {
			wg.Go(func() { at[i] = s.get(s.Context(), "/500").at })
		}
		wg.Wait()
		slices.Sort(at)
		assert.GreaterOrEqual(s, at[0], 40*time.Second)
		assert.LessOrEqual(s, at[39], 50*time.Second)
		assert.Greater(s, at[39]-at[0], 5*time.Second, "spread out: %v", at)
		assert.Greater(s, at[30]-at[10], time.Second, "spread out: %v", at)
	})
}

// Whatever answers come in whatever order, a host is left alone when it has to
// be, and at no other time: requests that are not to be sent then agree with a
// model of a few lines.
func TestCooldownsKeepToTheirModel(t *testing.T) {
	type event struct {
		begin, end  time.Duration
		code, asked int
	}
	seed := rand.Uint64()
	t.Log("seed ", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	events := make([]event, 300)
	for i := range events {
		e := &events[i]
		e.begin = time.Duration(random.IntN(1000)*1000+i+1) * time.Millisecond // no two of these, or of their ends, at once
		e.end = e.begin + time.Duration(random.IntN(30))*time.Second + 500*time.Microsecond
		e.code = []int{200, 200, 200, 204, 404, 429, 500, 503}[random.IntN(8)]
		e.asked = random.IntN(60)
	}
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(a.end, b.end) })
	until := func(now time.Duration) (until time.Duration) {
		last := time.Duration(0)
		for _, e := range events {
			switch {
			case e.end > now:
				return until
			case e.code < 400 && e.begin > last:
				until = 0
			case (e.code == 429 || e.code == 503) && e.asked > 0:
				until, last = max(until, e.end+time.Duration(e.asked)*time.Second), e.end
			}
		}
		return until
	}
	coolScenes(t, httpretry.Policy{MaxAttempts: 1}, func(s *coolScene) {
		var wg sync.WaitGroup
		for _, e := range events {
			wg.Go(func() {
				time.Sleep(e.begin)
				s.once(fmt.Sprintf("/%d?Retry-After=%d&takes=%v", e.code, e.asked, e.end-e.begin))
			})
		}
		for range 1100 {
			time.Sleep(time.Second)
			now := time.Since(s.start)
			assert.Equal(s, max(until(now)-now, 0), s.leftOf(s.Context(), httpretry.Policy{}, "http://a.test/404"), now)
		}
		wg.Wait()
	})
}

// Hazard A8, I8: many requests whose answers begin and end cool-downs at the same time: each of
// them ends, nothing is sent by who was refused, and afterwards all is as before.
func TestCooldownsRace(t *testing.T) {
	policy := every(time.Millisecond)
	policy.MaxAttempts = 2
	coolScenes(t, policy, func(s *coolScene) {
		paths := []string{"/200", "/404", "/200?takes=1ms", "/429/429?Retry-After-Ms=5&again=", "/429?Retry-After-Ms=3&takes=1ms", "/503?Retry-After-Ms=1"}
		var wg sync.WaitGroup
		for i := range 600 {
			wg.Go(func() {
				p := policy
				p.Cooldown = httpretry.Cooldown(i % 3)
				if i%2 == 0 {
					p.CooldownKey = func(r *http.Request) string { return r.URL.Path }
				}
				time.Sleep(time.Duration(i%50) * time.Millisecond)
				began := time.Now()
				got := s.with(p, paths[i%len(paths)])
				var cooling *httpretry.CooldownError
				if got.err != nil && assert.ErrorAs(s, got.err, &cooling) {
					assert.True(s, cooling.Until.After(began))
				}
				assert.Less(s, time.Since(began), 5*time.Second, "hundreds ask for 5 ms in turn")
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		assert.Zero(s, s.left())
	})
}

// Hazard A4, G2, G5: a first attempt that would have to wait too long is not sent, and fails before
// the wait.
func TestCooldownWaitThatDoesNotFit(t *testing.T) {
	const asked = 30 * time.Second
	for _, tt := range []struct {
		name   string
		client time.Duration
		ctx    time.Duration
		policy httpretry.Policy
		fits   bool
	}{
		{name: "no bound", fits: true},
		{name: "deadline", ctx: asked},
		{name: "later deadline", ctx: asked + 2, fits: true},
		{name: "client's timeout", client: asked},
		{name: "client's later timeout", client: asked + 2, fits: true},
		{name: "MaxElapsed", policy: httpretry.Policy{MaxElapsed: asked - 1}},
		{name: "longer MaxElapsed", policy: httpretry.Policy{MaxElapsed: asked}, fits: true},
		{name: "MaxRetryAfter", policy: httpretry.Policy{MaxRetryAfter: asked - 1}},
		{name: "longer MaxRetryAfter", policy: httpretry.Policy{MaxRetryAfter: asked}, fits: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.policy.Cooldown = httpretry.CooldownWait
			coolScenes(t, tt.policy, func(s *coolScene) { coolFit(s, cmp.Or(tt.ctx, time.Hour), tt.client, tt.fits) })
		})
	}
}

// coolFit plays a row of the table above.
func coolFit(s *coolScene, deadline, timeout time.Duration, fits bool) {
	s.once("/429?Retry-After=30")
	s.events = nil
	ctx, cancel := context.WithTimeout(s.Context(), deadline)
	defer cancel()
	body := contract.Counted("text")
	req := streamed(s, "PUT", "http://a.test/200", body).WithContext(ctx)
	resp, err := (&http.Client{Transport: s.transport, Timeout: timeout}).Do(req)
	assert.Equal(s, 1, body.Closes())
	end := s.start.Add(30 * time.Second)
	if fits {
		require.NoError(s, err)
		finish(s, resp)
		assert.False(s, time.Now().Before(end))
		return
	}
	coolAssertRefused(s, err, end, end)
	assert.Zero(s, time.Since(s.start))
	assert.Empty(s, s.at("a.test/200"))
	coolAssertOneEvent(s, req, httpretry.ReasonCooldown)
}

// coolAssertOneEvent checks the event of a request that was never sent.
func coolAssertOneEvent(s *coolScene, req *http.Request, reason httpretry.Reason) {
	s.Helper()
	require.Len(s, s.events, 1)
	e := s.events[0]
	assert.Equal(s, []any{0, reason, time.Duration(0)}, []any{e.Attempt, e.Reason, e.Wait})
	assert.Equal(s, req.URL, e.Request.URL)
	assert.Nil(s, e.Response)
	assert.Error(s, e.Err)
}

// Hazard G1, G4: a cancel ends the wait before a first attempt at once. Nothing is sent, and the
// body is closed, unread.
func TestCancelDuringCooldown(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		for _, ended := range []bool{false, true} {
			t.Run(fmt.Sprintf("Request.Cancel %v/ended early %v", legacy, ended), func(t *testing.T) {
				coolScenes(t, httpretry.Policy{Cooldown: httpretry.CooldownWait}, func(s *coolScene) { coolCancel(s, legacy, ended) })
			})
		}
	}
}

// coolCancel cancels a request after ten seconds, by its context or its Cancel,
// while it waits or, after a success, is to come back spread out.
func coolCancel(s *coolScene, legacy, ended bool) {
	const after = 10 * time.Second
	s.once("/429?Retry-After=40")
	if ended {
		time.AfterFunc(after-1, func() { s.once("/200") })
	}
	cause := errors.New("cause")
	ctx, cancel := context.WithCancelCause(s.Context())
	defer cancel(nil)
	body := contract.Counted("text")
	req := streamed(s, "PUT", "http://a.test/200/x", body).WithContext(ctx)
	if legacy {
		canceled := make(chan struct{})
		//lint:ignore SA1019 http.Client sets it
		req.Cancel = canceled
		time.AfterFunc(after, func() { close(canceled) })
	} else {
		time.AfterFunc(after, func() { cancel(cause) })
	}
	got := s.do(req)
	var e *httpretry.Error
	require.ErrorAs(s, got.err, &e)
	assert.Equal(s, []any{0, httpretry.ReasonCanceled}, []any{e.Attempts, e.Reason})
	if !legacy {
		assert.ErrorIs(s, got.err, context.Canceled)
		assert.ErrorIs(s, got.err, cause)
	}
	assert.Equal(s, after, got.at)
	assert.Equal(s, 1, body.Closes())
	assert.Empty(s, s.at("a.test/200/x"))
	assert.Equal(s, httpretry.ReasonCanceled, s.reason())
	assert.Zero(s, s.events[len(s.events)-1].Attempt)
}

// Hazard A5: while a first attempt waits, nobody touches its body.
func TestCooldownLeavesBodiesAlone(t *testing.T) {
	coolScenes(t, httpretry.Policy{Cooldown: httpretry.CooldownWait}, func(s *coolScene) {
		touched := func(what string) { assert.GreaterOrEqual(s, time.Since(s.start), 30*time.Second, what) }
		s.once("/429?Retry-After=30")
		body := &contract.Body{ReadCloser: io.NopCloser(readerFunc(func([]byte) (int, error) { touched("Read"); return 0, io.EOF }))}
		req := streamed(s, "PUT", "http://a.test/500", body)
		req.GetBody = func() (io.ReadCloser, error) { touched("GetBody"); return contract.Counted("text"), nil }
		assert.Equal(s, 200, s.do(req).status)
		assert.Len(s, s.at("a.test/500"), 2)
	})
}

// Hazard H3, H5: what a cool-down is about: the host, however it is spelled, or that and what
// the policy's key says.
func TestCooldownKeys(t *testing.T) {
	const credential = "Bearer hunter2"
	byCredential := func(r *http.Request) string { return r.Header.Get("Authorization") }
	byRoute := func(r *http.Request) string { return r.URL.Path }
	for _, tt := range []struct {
		name   string
		key    func(*http.Request) string
		first  string // of a.test; answers 429
		other  string
		header string // Authorization of the other
		cools  bool
	}{
		{"same", nil, "http://a.test/429", "http://a.test/200", "", true},
		{"path and query", nil, "http://a.test/429", "http://a.test/200/x?y=z", "", true},
		{"case, dot, port, user", nil, "http://a.test/429", "http://me:pw@A.tESt.:80/200", "", true},
		{"IDN", nil, "http://bücher.test/429", "http://xn--bcher-kva.test/200", "", true},
		{"port", nil, "http://a.test/429", "http://a.test:8080/200", "", false},
		{"scheme", nil, "http://a.test/429", "https://a.test/200", "", true},
		{"scheme and port", nil, "http://a.test/429", "https://a.test:80/200", "", false},
		{"subdomain", nil, "http://a.test/429", "http://b.a.test/200", "", false},
		{"same credential", byCredential, "http://a.test/429", "http://a.test/200", credential, true},
		{"other credential", byCredential, "http://a.test/429", "http://a.test/200", credential + "x", false},
		{"no credential", byCredential, "http://a.test/429", "http://a.test/200", "", false},
		{"same credential elsewhere", byCredential, "http://a.test/429", "http://b.test/200", credential, false},
		{"route", byRoute, "http://a.test/429", "http://a.test/200", credential, false},
		{"same route, any credential", byRoute, "http://a.test/429", "http://a.test/429", "", true},
		{"nobody's", func(*http.Request) string { return "" }, "http://a.test/429", "http://a.test/200", "", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			policy := httpretry.Policy{MaxAttempts: 1, CooldownKey: tt.key}
			coolScenes(t, policy, func(s *coolScene) {
				first, other := request(s, "GET", tt.first+"?Retry-After=30", ""), request(s, "GET", tt.other, "")
				first.Header.Set("Authorization", credential)
				other.Header.Set("Authorization", tt.header)
				s.do(first)
				policy.Cooldown = httpretry.CooldownFail
				got := s.do(other.WithContext(httpretry.WithPolicy(s.Context(), policy)))
				assert.Equal(s, tt.cools, got.err != nil, got.err)
				for _, e := range append(s.events, httpretry.Event{Err: got.err}) {
					assert.NotContains(s, fmt.Sprintf("%+v %q", e.Err, e.Err), "hunter2")
				}
			})
		})
	}
}

// A success of another key ends nothing.
func TestSuccessElsewhereEndsNothing(t *testing.T) {
	policy := httpretry.Policy{MaxAttempts: 1, CooldownKey: func(r *http.Request) string { return r.URL.Path }}
	coolScenes(t, policy, func(s *coolScene) {
		s.get(s.Context(), "/429?Retry-After=30")
		s.get(s.Context(), "/200")
		assert.Equal(s, 30*time.Second, s.leftOf(s.Context(), policy, "http://a.test/429"))
	})
}

// The key is asked for only while there is something to hear or to say, and once
// by each request.
func TestCooldownKeyIsAskedSparingly(t *testing.T) {
	calls := 0
	policy := every(time.Second)
	policy.CooldownKey = func(*http.Request) string { calls++; return "key" }
	for _, mode := range []httpretry.Cooldown{httpretry.CooldownOff, httpretry.CooldownWait, httpretry.CooldownFail} {
		t.Run(mode.String(), func(t *testing.T) {
			policy.Cooldown = mode
			coolScenes(t, policy, func(s *coolScene) {
				asks := func(want int, paths ...string) {
					s.Helper()
					calls = 0
					for _, path := range paths {
						s.get(s.Context(), path)
					}
					assert.Equal(s, want, calls, paths)
				}
				asks(0, "/200", "/404", "/500", "/error", "/429", "/503?Retry-After=0", "/500/429?Retry-After=0&again=")
				const refused = "?Retry-After=30&X-Should-Retry=false"
				asks(1, "/429"+refused)
				time.Sleep(time.Minute)
				asks(0, "/200", "/200", "/500") // although nobody has looked since
				s.do(request(s, "GET", "http://b.test/503"+refused, ""))
				time.Sleep(time.Minute)
				asks(0, "/500", "/404", "/200")
				s.do(request(s, "GET", "http://c.test/503"+refused, ""))
				asks(1, "/200")
				asks(1, "/500")
			})
		})
	}
}

// Hazard K4: a panic of the key function, or of an observer that hears of a
// request which was not sent, reaches the caller, and nothing is left open.
func TestCooldownPanics(t *testing.T) {
	for name, tt := range map[string]struct {
		path     string
		mode     httpretry.Cooldown
		observer bool          // panics, or the key function
		later    time.Duration // until the host cools down
	}{
		"before the first attempt":   {"/200", httpretry.CooldownWait, false, 0},
		"refused":                    {"/200", httpretry.CooldownFail, true, 0},
		"with the answer":            {"/429?Retry-After=30", httpretry.CooldownOff, false, 0},
		"with a success":             {"/200", httpretry.CooldownOff, false, 0},
		"before a retry":             {"/500", httpretry.CooldownOff, false, 0},
		"after the wait for a retry": {"/500", httpretry.CooldownOff, false, time.Second / 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				policy := every(time.Second)
				policy.Cooldown = tt.mode
				policy.CooldownKey = func(*http.Request) string { return coolPanics(!tt.observer) }
				var open atomic.Int32
				base := coolOpen(&coolBase{start: time.Now(), asked: map[string][]time.Duration{}}, &open)
				// The checks do not expect a panic.
				transport := contractless(t, httpretry.Config{Base: base, Policy: policy, Observe: func(_ context.Context, e httpretry.Event) {
					coolPanics(tt.observer && e.Attempt == 0)
				}})
				time.AfterFunc(tt.later, func() { coolOther(t, transport) })
				time.Sleep(time.Nanosecond)
				body := contract.Counted("text")
				assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(streamed(t, "PUT", "http://a.test"+tt.path, body)) })
				assert.Zero(t, open.Load())
				assert.Equal(t, 1, body.Closes())
				assert.PanicsWithValue(t, "boom", func() { _, _ = transport.RoundTrip(request(t, "PUT", "http://a.test"+tt.path, "text")) })
			})
		})
	}
}

func coolPanics(now bool) string {
	if now {
		panic("boom")
	}
	return ""
}

// coolOther lets a.test cool down, by a request whose policy has no key.
func coolOther(t *testing.T, transport http.RoundTripper) {
	plain := httpretry.WithPolicy(t.Context(), httpretry.Policy{MaxAttempts: 1})
	resp, err := transport.RoundTrip(request(t, "GET", "http://a.test/429?Retry-After=30", "").WithContext(plain))
	if assert.NoError(t, err) {
		assert.NoError(t, resp.Body.Close())
	}
}

// coolOpen counts the responses of next that are open.
func coolOpen(next http.RoundTripper, open *atomic.Int32) http.RoundTripper {
	return baseFunc(func(req *http.Request) (*http.Response, error) {
		resp, err := next.RoundTrip(req)
		if resp != nil {
			open.Add(1)
			resp.Body = &coolBody{resp.Body, sync.OnceFunc(func() { open.Add(-1) })}
		}
		return resp, err
	})
}

type coolBody struct {
	io.ReadCloser
	closed func()
}

func (b *coolBody) Close() error { b.closed(); return b.ReadCloser.Close() }

// Hazard H4, H7: ten thousand hosts that want to be left alone fill no memory.
// Who waits for one that is forgotten waits as long as it was told to.
func TestManyHostsCoolDown(t *testing.T) {
	coolScenes(t, every(time.Second), func(s *coolScene) {
		s.transport = contractless(s, httpretry.Config{Base: s.coolBase, Policy: every(time.Second)}) // the checks keep too much
		var wg sync.WaitGroup
		s.once("/429?Retry-After=30")
		for i := range 20 {
			policy := every(time.Second)
			policy.Cooldown = httpretry.Cooldown(i % 2)
			wg.Go(func() {
				got := s.with(policy, "/500")
				assert.Equal(s, 200, got.status)
				assert.GreaterOrEqual(s, got.at, 30*time.Second)
			})
		}
		synctest.Wait()
		cool := func(from, to int) {
			for i := range to - from {
				url := fmt.Sprintf("http://h%d.test/503?Retry-After=3000", from+i)
				s.do(request(s, "GET", url, "").WithContext(httpretry.WithPolicy(s.Context(), httpretry.Policy{MaxAttempts: 1})))
			}
			s.coolBase.mu.Lock()
			s.asked = map[string][]time.Duration{}
			s.coolBase.mu.Unlock()
		}
		hosts := 10_000
		if raceEnabled {
			hosts = 500 // eviction takes a hundred times as long
		}
		cool(0, 1100)
		before := heap()
		cool(1100, 1100+hosts)
		grown := heap() - before
		s.Logf("%d hosts more: %d KiB", hosts, grown>>10)
		assert.Less(s, grown, int64(256<<10))
		assert.Zero(s, s.left(), "forgotten")
		wg.Wait()
	})
}

// A success costs no allocation while its host, another, or none cools down.
func TestCooldownAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, mode := range []httpretry.Cooldown{httpretry.CooldownOff, httpretry.CooldownWait, httpretry.CooldownFail} {
		ok := newInstant().ok
		cfg := everything(baseFunc(func(req *http.Request) (*http.Response, error) {
			if req.URL.Path == "/429" {
				return coolAnswer(429, header("Retry-After", "3600")), nil
			}
			return ok, nil
		}))
		cfg.Policy.Cooldown, cfg.Policy.MaxAttempts = mode, 1
		transport := contractless(t, cfg)
		req := request(t, "GET", "http://a.test/", "")
		success := func() {
			if _, err := transport.RoundTrip(req); err != nil {
				t.Error(err)
			}
		}
		for _, cooling := range []string{"", "http://b.test/429", "http://a.test/429"} {
			if cooling != "" {
				_, err := transport.RoundTrip(request(t, "GET", cooling, ""))
				require.NoError(t, err)
			}
			if cooling == "http://a.test/429" && mode != httpretry.CooldownOff {
				break // nothing is sent
			}
			assert.Zero(t, testing.AllocsPerRun(1000, success), "%v %v", mode, cooling)
		}
	}
}

// Cooldown is refused if it is none of the three.
func TestCooldownValidates(t *testing.T) {
	const problem = "Cooldown: Cooldown(7) is none of CooldownOff, CooldownWait and CooldownFail"
	bad := httpretry.Policy{Cooldown: 7}
	assert.EqualError(t, bad.Validate(), "httpretry: Policy."+problem)
	_, err := httpretry.New(httpretry.Config{Policy: bad, Hosts: map[string]httpretry.Policy{"a.test": bad}})
	assert.EqualError(t, err, "httpretry: Config.Policy."+problem+"\nhttpretry: Config.Hosts[\"a.test\"]."+problem)
	bad.Budget, bad.KeyHeader = &httpretry.HostBudget{Ratio: -1}, " "
	fields := []string{"MaxElapsed", "Budget", "Cooldown", "KeyHeader"}
	bad.MaxElapsed = -1
	for i, line := range strings.Split(bad.Validate().Error(), "\n") {
		assert.True(t, strings.HasPrefix(line, "httpretry: Policy."+fields[i]+":"), "in the order of the fields: %s", line)
	}
	for c, want := range map[httpretry.Cooldown]string{0: "off", 1: "wait", 2: "fail", 3: "Cooldown(3)", 255: "Cooldown(255)"} {
		assert.Equal(t, want, c.String())
		assert.Equal(t, c > httpretry.CooldownFail, httpretry.Policy{Cooldown: c}.Validate() != nil)
	}
}

// A RetryTransport that has another below it takes a request that was refused
// there for one that nobody has processed, so that a POST is sent again, too, and
// sends it when the host has cooled down.
func TestCooldownBelow(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		t.Run(method, func(t *testing.T) {
			coolScenes(t, httpretry.Policy{MaxAttempts: 1, Cooldown: httpretry.CooldownFail}, func(s *coolScene) {
				var events record
				upper := contract.New(s, httpretry.Config{Base: s.transport, Policy: every(10 * time.Second), Observe: events.observe})
				s.once("/429?Retry-After=15")
				resp, err := upper.RoundTrip(request(s, method, "http://a.test/200", ""))
				require.NoError(s, err)
				finish(s, resp)
				require.Len(s, s.at("a.test/200"), 1)
				assert.GreaterOrEqual(s, s.at("a.test/200")[0], 15*time.Second)
				assert.LessOrEqual(s, s.at("a.test/200")[0], 18750*time.Millisecond)
				require.Len(s, events.events, 2)
				coolAssertRefused(s, events.events[0].Err, s.start.Add(15*time.Second), s.start.Add(15*time.Second))
			})
		})
	}
	// By itself, such an error proves nothing: it may be another request's.
	unsent := &httpretry.Error{Reason: httpretry.ReasonCooldown, Err: &httpretry.CooldownError{}}
	assert.Equal(t, httpretry.Transient, httpretry.Classify(nil, fmt.Errorf("below: %w", unsent)))
}
