package httpretry_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
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

var errConnectionLost = errors.New("connection lost")

// cooldowns are the values of Policy.Cooldown.
var cooldowns = []httpretry.Cooldown{
	httpretry.CooldownSend, httpretry.CooldownWait, httpretry.CooldownFail}

// asksFor returns a 429 that asks for a pause.
func asksFor(seconds int) contract.Step {
	return contract.Status(429, "Retry-After", strconv.Itoa(seconds))
}

// taking returns a step that takes some time.
func taking(d time.Duration, step contract.Step) contract.Step {
	step.Takes = d
	return step
}

// scene is a transport whose requests have scripts of their own, in virtual
// time.
type scene struct {
	*testing.T
	contract.Record
	start     time.Time
	transport http.RoundTripper
}

func playScene(t *testing.T, policy httpretry.Policy, play func(*scene)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &scene{T: t, start: time.Now()}
		s.transport = contract.New(t,
			httpretry.Config{Base: contract.Scripts{}, Policy: policy, Observe: s.Observe})
		play(s)
		synctest.Wait()
	})
}

// playRow plays a scene in a subtest.
func playRow(t *testing.T, name string, policy httpretry.Policy, play func(*scene)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { playScene(t, policy, play) })
}

// result is how a request ended, and when.
type result struct {
	status int
	err    error
	at     time.Duration
}

func (s *scene) do(req *http.Request, steps ...contract.Step) result {
	return s.play(req, contract.Play(steps...))
}

// play is do with a Script that the caller looks at afterwards.
func (s *scene) play(req *http.Request, script *contract.Script) result {
	resp, err := s.transport.RoundTrip(script.For(req))
	r := result{err: err, at: time.Since(s.start)}
	if err == nil {
		r.status = resp.StatusCode
		assert.NoError(s, resp.Body.Close())
	}
	return r
}

// get sends a GET to a.test.
func (s *scene) get(ctx context.Context, steps ...contract.Step) result {
	return s.do(newGet(s).WithContext(ctx), steps...)
}

// getWith is get with a policy.
func (s *scene) getWith(p httpretry.Policy, steps ...contract.Step) result {
	return s.get(httpretry.WithPolicy(s.Context(), p), steps...)
}

// sendOnce sends a GET to a.test that is not retried, whatever the cool-downs.
func (s *scene) sendOnce(step contract.Step) result {
	return s.getWith(httpretry.Policy{MaxAttempts: 1}, step)
}

// remaining returns the rest of the cool-down of a.test. It sends a request
// only if that is 0, since a success would end the cool-down.
func (s *scene) remaining() time.Duration {
	s.Helper()
	got := s.getWith(httpretry.Policy{Cooldown: httpretry.CooldownFail}, s200)
	if cooling, ok := errors.AsType[*httpretry.CooldownError](got.err); ok {
		return time.Until(cooling.Until)
	}
	require.NoError(s, got.err)
	return 0
}

func (s *scene) sleep(d time.Duration) { time.Sleep(d); synctest.Wait() }

// crowdRate is how many requests a second sendCrowd sends.
const crowdRate = 100

// sendCrowd sends 100 requests a second for the given time to a host that
// answers 429 with Retry-After: 30 until 30 seconds are over. It returns the
// errors of the requests that failed, and how many attempts arrived in each
// second.
func sendCrowd(t *testing.T, cooldown httpretry.Cooldown,
	length time.Duration) (failed []error, arrivals []int) {
	began := time.Now()
	over := began.Add(30*time.Second + 10*time.Millisecond)
	arrivals = make([]int, length/time.Second+60)
	var mu sync.Mutex
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		mu.Lock()
		arrivals[time.Since(began)/time.Second]++
		mu.Unlock()
		time.Sleep(10 * time.Millisecond)
		if time.Now().Before(over) {
			return contract.Play(asksFor(30)).RoundTrip(req)
		}
		return contract.Play(s200).RoundTrip(req)
	})
	client := &http.Client{
		Transport: contract.With(t, base, httpretry.Policy{Cooldown: cooldown})}
	var wg sync.WaitGroup
	for range length / (time.Second / crowdRate) {
		time.Sleep(time.Second / crowdRate)
		wg.Go(func() {
			resp, err := client.Get("http://A.test:80/")
			if err == nil {
				err = resp.Body.Close()
				if resp.StatusCode != 200 {
					err = errConnectionLost
				}
			}
			if err != nil {
				mu.Lock()
				defer mu.Unlock()
				failed = append(failed, err)
			}
		})
	}
	wg.Wait()
	return failed, arrivals
}

// A host that answers 429 with Retry-After: 30 is the target of 100 requests a
// second. With CooldownWait and CooldownFail, it receives almost none of them
// during the cool-down. With CooldownWait, it receives all of them within 30 s
// afterward, at 1.39 times the normal rate for half of that time. New requests
// arrive beside them.
func TestCooldownMeasured(t *testing.T) {
	const over, length = 30 * time.Second, 75 * time.Second
	for _, mode := range []httpretry.Cooldown{httpretry.CooldownWait, httpretry.CooldownFail} {
		contract.Bubble(t, mode.String(), func(t *testing.T) {
			began := time.Now()
			failed, arrivals := sendCrowd(t, mode, length)
			meanwhile := 0
			for _, n := range arrivals[:30] {
				meanwhile += n
			}
			t.Logf("%d sent within 30 s, then each second %v; %d failed", meanwhile,
				arrivals[30:75], len(failed))
			assert.LessOrEqual(t, meanwhile, 5)
			if mode == httpretry.CooldownFail {
				assert.InDelta(t, 2999, len(failed), 10)
				for _, err := range failed {
					assertNotSent(t, err, began.Add(over), began.Add(over+time.Second))
				}
				return
			}
			assert.Empty(t, failed)
			first := 0
			for i, n := range arrivals[30:] {
				// Chance is the rest: 72 are six standard deviations.
				assert.LessOrEqual(t, n, 239+72, "second %d", 30+i)
				if i < 15 {
					first += n
				}
			}
			assert.InDelta(t, 2.39, float64(first)/15/crowdRate, 0.1)
			for i, n := range arrivals[62:75] {
				assert.LessOrEqual(t, n, crowdRate+1, "second %d", 62+i)
			}
		})
	}
}

// assertNotSent checks the error of a request to a.test that was not sent
// because of a cool-down.
func assertNotSent(t testing.TB, err error, earliest, latest time.Time) {
	t.Helper()
	var e *httpretry.Error
	var cooling *httpretry.CooldownError
	if assert.ErrorAs(t, err, &e) && assert.ErrorAs(t, err, &cooling) {
		assert.Equal(t, []any{0, httpretry.ReasonCooldown}, []any{e.Attempts, e.Reason})
		assert.Equal(t, "http://a.test", cooling.Origin)
		assert.False(t, cooling.Until.Before(earliest) || cooling.Until.After(latest), "until %v",
			cooling.Until)
		assert.Contains(t, err.Error(),
			"httpretry: not sent: http://a.test asked for a pause until 2000-01-01T")
		assert.False(t, e.Timeout())
	}
}

// A request fails at 0 s, and its retry is due at 1 s. Another request to the
// host begins a cool-down of 30 s, either just before the decision to retry or
// at 0.5 s.
func TestRetriesWaitForCooldowns(t *testing.T) {
	const soon, later = time.Nanosecond, 500 * time.Millisecond
	second := contract.RetryEvery(time.Second)
	short, elapsed := second, second
	short.MaxRetryAfter = 10 * time.Second
	elapsed.MaxElapsed = 20 * time.Second
	lost := contract.Fails(errConnectionLost)
	returned := result{500, nil, 0} // without a retry
	waited := result{200, nil, 30500 * time.Millisecond}
	unsent := result{0, &httpretry.CooldownError{}, time.Second}
	for _, tt := range []cooledRetry{
		{"waits", second, 0, soon, s500, httpretry.ReasonSuccess,
			result{200, nil, 30 * time.Second}},
		{"waits", second, 0, later, s500, httpretry.ReasonSuccess, waited},
		{"waits after an error", second, 0, later, lost, httpretry.ReasonSuccess, waited},
		{"too long", short, 0, soon, s500, httpretry.ReasonCooldown, returned},
		{"too long", short, 0, soon, lost, httpretry.ReasonCooldown,
			result{0, errConnectionLost, 0}},
		{"too long", short, 0, later, s500, httpretry.ReasonCooldown, unsent},
		{"too long", short, 0, later, lost, httpretry.ReasonCooldown,
			result{0, errConnectionLost, time.Second}},
		{"deadline", second, 20 * time.Second, soon, s500, httpretry.ReasonDeadline, returned},
		{"deadline", second, 20 * time.Second, later, s500, httpretry.ReasonCooldown, unsent},
		{"at the deadline", second, 30*time.Second + later, later, s500,
			httpretry.ReasonCooldown, unsent},
		{"deadline is later", second, 31*time.Second + later, later, s500,
			httpretry.ReasonSuccess, waited},
		{"elapsed", elapsed, 0, soon, s500, httpretry.ReasonMaxElapsed, returned},
		{"elapsed", elapsed, 0, later, s500, httpretry.ReasonCooldown, unsent},
	} {
		for _, mode := range cooldowns {
			title := fmt.Sprintf("%s/%v/%d/%v", tt.name, tt.at, tt.first.Status, mode)
			tt.policy.Cooldown = mode
			playRow(t, title, tt.policy, tt.play)
		}
	}
}

// cooledRetry is a row of TestRetriesWaitForCooldowns.
type cooledRetry struct {
	name     string
	policy   httpretry.Policy
	deadline time.Duration
	at       time.Duration // of the other response
	first    contract.Step
	reason   httpretry.Reason
	want     result // at: the earliest
}

func (tt cooledRetry) play(s *scene) {
	ctx := s.Context()
	if tt.deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, tt.deadline)
		defer cancel()
	}
	time.AfterFunc(tt.at, func() { s.sendOnce(asksFor(30)) })
	if tt.at == time.Nanosecond { // the other response arrives while this request is in flight
		tt.first.Takes = 2 * time.Nanosecond
	}
	script := contract.Play(tt.first, s200)
	got := s.play(newGet(s).WithContext(ctx), script)
	if tt.want.err == nil {
		assert.NoError(s, got.err)
		assert.Equal(s, tt.want.status, got.status)
	}
	last := tt.want.at + time.Millisecond
	if tt.want.status == 200 {
		last = tt.want.at + 7500*time.Millisecond + 1
		assert.Len(s, script.Attempts(), 2)
	}
	assert.GreaterOrEqual(s, got.at, tt.want.at)
	assert.LessOrEqual(s, got.at, last)
	assert.Equal(s, tt.reason, s.Reason())
	if tt.reason == httpretry.ReasonCooldown && tt.want.at > 0 {
		var e *httpretry.Error
		var cooling *httpretry.CooldownError
		require.ErrorAs(s, got.err, &e)
		assert.Equal(s, []any{1, tt.reason}, []any{e.Attempts, e.Reason})
		assert.ErrorAs(s, got.err, &cooling)
		assert.Regexp(s,
			`^httpretry: gave up after 1 attempt \(host_cooling_down\): http://a\.test asked for a pause until \S+ \(last attempt: (status 500|connection lost)\); hint: `, got.err.Error())
	}
	if tt.want.err == errConnectionLost {
		assert.ErrorIs(s, got.err, errConnectionLost)
	}
}

// A host that asks again and again does not hold up a first attempt for longer
// than MaxRetryAfter, and a retry not forever.
func TestRollingCooldown(t *testing.T) {
	for _, asked := range []int{1, 10, 29} {
		playRow(t, fmt.Sprint(asked), httpretry.Policy{}, func(s *scene) {
			var wg sync.WaitGroup
			wg.Go(func() {
				for range 400 {
					s.sendOnce(asksFor(asked))
					time.Sleep(500 * time.Millisecond)
				}
			})
			for i := range 50 {
				time.Sleep(time.Second)
				wg.Go(func() {
					policy := contract.RetryEvery(time.Second)
					policy.MaxRetryAfter = 30 * time.Second
					attempts, longest := i%2, 30*time.Second
					if attempts == 0 {
						policy.Cooldown = httpretry.CooldownWait
					} else {
						// The decision to retry accepts one such wait, and
						// each of both has a jitter.
						longest = 75 * time.Second
					}
					began, script := time.Since(s.start), contract.Play(s500, s200)
					ctx := httpretry.WithPolicy(s.Context(), policy)
					got := s.play(newGet(s).WithContext(ctx), script)
					assert.Len(s, script.Attempts(), attempts)
					var e *httpretry.Error
					if assert.ErrorAs(s, got.err, &e) {
						assert.Equal(s, []any{attempts, httpretry.ReasonCooldown},
							[]any{e.Attempts, e.Reason})
					}
					assert.LessOrEqual(s, got.at-began, longest)
				})
			}
			wg.Wait()
		})
	}
}

// Hazard I9: forty first attempts arrive at 10 s and wait for a cool-down of
// 40 s that another request has begun at 0 s. They return after half to all of
// the time for which they have waited, or of the time that they have left.
func TestFirstAttemptsReturn(t *testing.T) {
	const sec = time.Second
	asks := func(at, seconds int) []timedRequest {
		return []timedRequest{{time.Duration(at) * sec, "a.test", asksFor(seconds)}}
	}
	succeeds := []timedRequest{{20 * sec, "a.test", s200}}
	for _, tt := range []struct {
		name       string
		policy     httpretry.Policy
		deadline   time.Duration // 0: none
		others     []timedRequest
		from, last time.Duration
	}{
		{"to the end", httpretry.Policy{}, 0, nil, 55 * sec, 70 * sec},
		{"ended early", httpretry.Policy{}, 0, succeeds, 25 * sec, 30 * sec},
		{"extended", httpretry.Policy{MaxRetryAfter: -1}, 0, asks(20, 40), 85 * sec, 110 * sec},
		{"again while they return", httpretry.Policy{MaxRetryAfter: -1}, 0, asks(54, 20),
			106 * sec, 138 * sec},
		{"MaxRetryAfter", httpretry.Policy{MaxRetryAfter: 40 * sec}, 0, nil, 45 * sec, 50 * sec},
		{"no more than MaxRetryAfter", httpretry.Policy{MaxRetryAfter: 30 * sec}, 0, nil,
			40 * sec, 40 * sec},
		{"MaxElapsed", httpretry.Policy{MaxElapsed: 36 * sec}, 0, nil, 43 * sec, 46 * sec},
		{"deadline", httpretry.Policy{}, 38 * sec, nil, 44*sec - 1, 48*sec - 1},
	} {
		tt.policy.Cooldown = httpretry.CooldownWait
		playRow(t, tt.name, httpretry.Policy{MaxAttempts: 1}, func(s *scene) {
			at := playFirstAttempts(s, tt.policy, tt.deadline, append(asks(0, 40), tt.others...))
			assert.GreaterOrEqual(s, at[0], tt.from)
			assert.LessOrEqual(s, at[39], tt.last)
			// By chance, this fails once in ten million runs.
			assert.GreaterOrEqual(s, at[39]-at[0], (tt.last-tt.from)*6/10, "%v", at)
		})
	}
}

// playFirstAttempts plays a row of TestFirstAttemptsReturn, and returns when
// the requests were answered.
func playFirstAttempts(
	s *scene, policy httpretry.Policy, deadline time.Duration, others []timedRequest,
) []time.Duration {
	var wg sync.WaitGroup
	for _, other := range others {
		wg.Go(func() {
			time.Sleep(other.at)
			s.sendOnce(other.step)
		})
	}
	time.Sleep(10 * time.Second)
	ctx := httpretry.WithPolicy(s.Context(), policy)
	if deadline > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	at := make([]time.Duration, 40)
	for i := range at {
		wg.Go(func() {
			got := s.get(ctx, s200)
			assert.Equal(s, 200, got.status, got.err)
			at[i] = got.at
		})
	}
	wg.Wait()
	slices.Sort(at)
	return at
}

// A transport may be used in several bubbles of testing/synctest, one after the
// other, although a cool-down goes on from one to the next. A request that has
// left leaves nothing behind that a success in another bubble would close.
func TestCooldownInSeveralBubbles(t *testing.T) {
	policy := httpretry.Policy{MaxAttempts: 1, MaxRetryAfter: 2 * time.Minute}
	transport := contract.Unchecked(t, httpretry.Config{Base: contract.Scripts{}})
	send := func(
		step contract.Step, cooldown httpretry.Cooldown, limit time.Duration,
	) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			began := time.Now()
			policy.Cooldown = cooldown
			ctx, cancel := context.WithCancel(httpretry.WithPolicy(t.Context(), policy))
			time.AfterFunc(limit, cancel)
			resp, err := transport.RoundTrip(contract.Play(step).For(newGet(t).WithContext(ctx)))
			if err == nil {
				assert.NoError(t, resp.Body.Close())
			}
			took = time.Since(began)
			cancel()
		})
		return took
	}
	send(contract.Status(503, "Retry-After", "120"), httpretry.CooldownSend, time.Hour)
	// The clock of each bubble starts at the same time.
	assert.Equal(t, time.Minute, send(s404, httpretry.CooldownWait, time.Minute))
	assert.Equal(t, 2*time.Minute, send(s404, httpretry.CooldownWait, time.Hour))
	send(contract.Status(503, "Retry-After", "120"), httpretry.CooldownSend, time.Hour)
	assert.Equal(t, time.Minute, send(s404, httpretry.CooldownWait, time.Minute))
	send(s200, httpretry.CooldownSend, time.Hour) // ends the cool-down
	assert.Zero(t, send(s404, httpretry.CooldownWait, time.Hour))
}

// Which responses begin a cool-down, and how long it lasts.
func TestResponsesThatBeginCooldowns(t *testing.T) {
	const none, some = 0, 30 * time.Second
	github := httpretry.Policy{Classify: func(
		req *http.Request, resp *http.Response, err error) httpretry.Outcome {
		if err == nil && resp.StatusCode == 403 {
			return httpretry.Transient
		}
		return httpretry.Classify(req, resp, err)
	}}
	allFinal := httpretry.Policy{Classify: func(
		*http.Request, *http.Response, error) httpretry.Outcome {
		return httpretry.Final
	}}
	asked := []string{"Retry-After", "30"}
	spent := []string{"X-Ratelimit-Remaining", "0", "X-Ratelimit-Reset", "30"}
	for _, tt := range []struct {
		codes  string
		header []string
		want   time.Duration
		policy httpretry.Policy
		method string
		after  int // the status of a response before; 0: there is none
	}{
		{codes: "429 503", header: asked, want: some},
		{codes: "200 301 400 403 404 408 413 425 500 502 504 529", header: asked, want: none},
		{codes: "403", header: asked, policy: github, want: some},
		{codes: "403", header: spent, policy: github, want: some},
		{codes: "403", header: asked, policy: allFinal, want: none},
		{codes: "429 503", header: asked, policy: allFinal, want: some},
		{codes: "200 204 404", header: spent, want: none},
		{codes: "200 404", header: []string{"Ratelimit", `"default";r=0;t=30`}, want: none},
		{codes: "429 503", header: []string{"Ratelimit", `"default";r=0;t=30`}, want: some},
		{codes: "429 503", header: []string{"Ratelimit", `"default";r=1;t=30`}, want: none},
		{codes: "429 503", header: spent, want: some},
		{codes: "429 503", want: none},
		{codes: "429 503", header: []string{"Retry-After", "0"}, want: none},
		{codes: "429 503", header: []string{"Retry-After", "3601"}, want: time.Hour},
		// Responses that are not retried begin one, too.
		{codes: "429 503", method: "POST", header: asked, want: some},
		{codes: "429 503", header: append(asked, "X-Should-Retry", "false"), want: some},
		{codes: "429 503", header: asked, policy: httpretry.Policy{MaxAttempts: 1}, want: some},
		{codes: "429 503", after: 500, header: asked,
			policy: httpretry.Policy{MaxAttempts: 2, MaxRetryAfter: time.Hour}, want: some},
	} {
		tt.policy.Backoff = strategies.Constant{}
		// so that nothing is retried
		tt.policy.MaxRetryAfter = cmp.Or(tt.policy.MaxRetryAfter, time.Millisecond)
		for code := range strings.FieldsSeq(tt.codes) {
			status, err := strconv.Atoi(code)
			require.NoError(t, err)
			title := fmt.Sprint(code, tt.header, tt.method, tt.policy.MaxAttempts)
			playRow(t, title, tt.policy, func(s *scene) {
				steps := script{contract.Status(status, tt.header...)}
				if tt.after != 0 {
					steps = slices.Insert(steps, 0, contract.Status(tt.after, tt.header...))
				}
				method := cmp.Or(tt.method, "GET")
				s.do(contract.Request(s, method, "http://a.test/", ""), steps...)
				assert.Equal(s, tt.want, s.remaining())
				time.Sleep(tt.want)
				assert.Zero(s, s.remaining())
			})
		}
	}
}

// timedRequest is a request to any host that is not retried.
type timedRequest struct {
	at   time.Duration
	host string
	step contract.Step
}

// A cool-down begins at 10 s and lasts until 60 s. A success ends it early if
// its request was sent after the last response that asked for the cool-down.
func TestSuccessEndsCooldowns(t *testing.T) {
	const sec, end = time.Second, 60 * time.Second
	for _, tt := range []struct {
		name string
		sent []timedRequest
		want time.Duration // when the cool-down ends
	}{
		{"nothing", nil, end},
		{"success", []timedRequest{{20 * sec, "a.test", taking(sec, s200)}}, 21 * sec},
		{"redirect", []timedRequest{{20 * sec, "a.test", s304}}, 20 * sec},
		{"another's success", []timedRequest{
			{20 * sec, "b.test", s200}, {20 * sec, "a.test:81", s200}}, end},
		{"failures", []timedRequest{{20 * sec, "a.test", s400}, {21 * sec, "a.test", s404},
			{22 * sec, "a.test", s500}, {23 * sec, "a.test", s429},
			{24 * sec, "a.test", contract.Fails(errConnectionLost)}}, end},
		{"success that was on its way",
			[]timedRequest{{5 * sec, "a.test", taking(10*sec, s200)}}, end},
		{"success that was on its way at the last answer", []timedRequest{
			{12 * sec, "a.test", taking(10*sec, s200)}, {15 * sec, "a.test", asksFor(1)}}, end},
		{"success after the last answer", []timedRequest{
			{12 * sec, "a.test", asksFor(1)}, {15 * sec, "a.test", s200}}, 15 * sec},
	} {
		playRow(t, tt.name, httpretry.Policy{MaxAttempts: 1}, func(s *scene) {
			for _, r := range append(tt.sent, timedRequest{10 * sec, "a.test", asksFor(50)}) {
				go func() {
					time.Sleep(r.at)
					s.do(contract.Request(s, "GET", "http://"+r.host, ""), r.step)
				}()
			}
			s.sleep(tt.want - 1)
			assert.NotZero(s, s.remaining())
			s.sleep(2)
			assert.Zero(s, s.remaining())
			s.sleep(end)
		})
	}
}

// The end of a cool-down also ends the wait of a retry that began to wait
// before the cool-down. It does not end the wait of a request whose own
// response asked for that wait. A success of a retry that was sent before the
// cool-down ends nothing.
func TestSuccessWakesRetries(t *testing.T) {
	playScene(t, contract.RetryEvery(time.Second), func(s *scene) {
		var wg sync.WaitGroup
		results := make([]result, 4)
		for i, r := range []struct {
			at    time.Duration
			steps script
		}{
			{9500 * time.Millisecond, script{s500, s200}},
			{11 * time.Second, script{s500, s204}},
			{10 * time.Second, script{asksFor(50), s201}},
			// twice
			{5 * time.Second, script{taking(3*time.Second, s500), taking(3*time.Second, s202)}},
		} {
			wg.Go(func() {
				time.Sleep(r.at)
				results[i] = s.get(s.Context(), r.steps...)
			})
		}
		s.sleep(20 * time.Second)
		assert.NotZero(s, s.remaining(), "although there was a success")
		s.sendOnce(s200)
		wg.Wait()
		assert.Equal(s, []int{200, 204, 201, 202},
			[]int{results[0].status, results[1].status, results[2].status, results[3].status})
		assert.Equal(s, 12*time.Second, results[3].at)
		for i, from := range []time.Duration{20 * time.Second, 60 * time.Second, 60 * time.Second} {
			assert.True(s, results[i].at >= from && results[i].at <= from+12500*time.Millisecond,
				"%d: %v", i, results[i].at)
		}
	})
}

// Hazard I9: retries that wait for a cool-down that another request began
// arrive spread out. If a success ends the cool-down early, they return within
// the time that it has lasted, which may be less than a quarter of the wait
// that the host asked for.
func TestCooldownSpreadsRetries(t *testing.T) {
	for _, tt := range []struct{ ended, took time.Duration }{
		{2 * time.Second, 2 * time.Second},
		{30 * time.Second, 10 * time.Second},
		{40 * time.Second, 10 * time.Second}, // not early
	} {
		playRow(t, tt.ended.String(), contract.RetryEvery(time.Second), func(s *scene) {
			var wg sync.WaitGroup
			at := make([]time.Duration, 40)
			for i := range at {
				wg.Go(func() { at[i] = s.get(s.Context(), s500, s200).at })
			}
			synctest.Wait() // their waits begin before the cool-down
			s.sendOnce(asksFor(40))
			s.sleep(tt.ended)
			s.sendOnce(s200)
			wg.Wait()
			slices.Sort(at)
			assert.GreaterOrEqual(s, at[0], tt.ended)
			assert.LessOrEqual(s, at[39], tt.ended+tt.took)
			assert.Greater(s, at[39]-at[0], tt.took/2, "spread out: %v", at)
			assert.Greater(s, at[30]-at[10], tt.took/10, "spread out: %v", at)
		})
	}
}

// Hazard A4, G2, G5: a first attempt is not sent, and fails at once, if the
// wait for its host would end too late.
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
		tt.policy.Cooldown = httpretry.CooldownWait
		playRow(t, tt.name, tt.policy,
			func(s *scene) { playWait(s, cmp.Or(tt.ctx, time.Hour), tt.client, tt.fits) })
	}
}

// playWait plays a row of TestCooldownWaitThatDoesNotFit.
func playWait(s *scene, deadline, timeout time.Duration, fits bool) {
	s.sendOnce(asksFor(30))
	s.Events = nil
	ctx, cancel := context.WithTimeout(s.Context(), deadline)
	defer cancel()
	body := contract.Counted("text")
	req := contract.Streamed(s, "PUT", "http://a.test/200", body).WithContext(ctx)
	script := contract.Play(s200)
	resp, err := (&http.Client{Transport: s.transport, Timeout: timeout}).Do(script.For(req))
	assert.Equal(s, 1, body.Closes())
	end := s.start.Add(30 * time.Second)
	if fits {
		require.NoError(s, err)
		contract.ReadBody(s, resp)
		assert.False(s, time.Now().Before(end))
		return
	}
	assertNotSent(s, err, end, end)
	assert.Zero(s, time.Since(s.start))
	assert.Empty(s, script.Attempts())
	require.Len(s, s.Events, 1)
	e := s.Events[0]
	assert.Equal(s, []any{0, httpretry.ReasonCooldown, time.Duration(0)},
		[]any{e.Attempt.Number, e.Reason, e.Wait})
	assert.Equal(s, req.URL, e.Request.URL)
	assert.Nil(s, e.Response)
	assert.Error(s, e.Err)
}

// Hazard G1, G4: a cancel ends the wait before a first attempt at once. The
// request is not sent, and its body is closed unread.
func TestCancelDuringCooldown(t *testing.T) {
	for _, legacy := range []bool{false, true} {
		for _, ended := range []bool{false, true} {
			title := fmt.Sprintf("Request.Cancel %v/ended early %v", legacy, ended)
			playRow(t, title, httpretry.Policy{Cooldown: httpretry.CooldownWait},
				func(s *scene) { playCancel(s, legacy, ended) })
		}
	}
}

// playCancel cancels a request after ten seconds, by its context or by
// Request.Cancel. By then the request waits for a cool-down, or, if a success
// ended that, waits a second time.
func playCancel(s *scene, legacy, ended bool) {
	const after = 10 * time.Second
	s.sendOnce(asksFor(40))
	if ended {
		time.AfterFunc(after-1, func() { s.sendOnce(s200) })
	}
	cause := errors.New("cause")
	ctx, cancel := context.WithCancelCause(s.Context())
	defer cancel(nil)
	body := contract.Counted("text")
	req := contract.Streamed(s, "PUT", "http://a.test/200/x", body).WithContext(ctx)
	if legacy {
		canceled := make(chan struct{})
		//nolint:staticcheck // http.Client sets it
		req.Cancel = canceled
		time.AfterFunc(after, func() { close(canceled) })
	} else {
		time.AfterFunc(after, func() { cancel(cause) })
	}
	script := contract.Play(s200)
	got := s.play(req, script)
	// The error of a context is its own, because nothing was sent.
	var e *httpretry.Error
	assert.Equal(s, legacy, errors.As(got.err, &e))
	if legacy {
		assert.EqualError(s, got.err, "httpretry: not sent: request canceled")
	} else {
		assert.ErrorIs(s, got.err, context.Canceled)
		assert.ErrorIs(s, got.err, cause)
	}
	assert.Equal(s, after, got.at)
	assert.Equal(s, 1, body.Closes())
	assert.Empty(s, script.Attempts())
	assert.Equal(s, httpretry.ReasonCanceled, s.Reason())
	assert.Zero(s, s.Events[len(s.Events)-1].Attempt.Number)
}

// Hazard A5: the request's body is not touched while a first attempt waits.
func TestCooldownLeavesBodiesAlone(t *testing.T) {
	playScene(t, httpretry.Policy{Cooldown: httpretry.CooldownWait}, func(s *scene) {
		touched := func(what string) {
			assert.GreaterOrEqual(s, time.Since(s.start), 30*time.Second, what)
		}
		s.sendOnce(asksFor(30))
		body := &contract.Body{
			ReadCloser: io.NopCloser(
				contract.ReaderFunc(
					func([]byte) (int, error) { touched("Read"); return 0, io.EOF }))}
		req := contract.Streamed(s, "PUT", "http://a.test/500", body)
		req.GetBody = func() (io.ReadCloser, error) {
			touched("GetBody")
			return contract.Counted("text"), nil
		}
		script := contract.Play(s500, s200)
		assert.Equal(s, 200, s.play(req, script).status)
		assert.Len(s, script.Attempts(), 2)
	})
}

// Elapsed and MaxElapsed include the wait of a first attempt.
func TestCooldownCountsAsElapsed(t *testing.T) {
	policy := contract.RetryEvery(11 * time.Second)
	policy.Cooldown, policy.MaxElapsed = httpretry.CooldownWait, 40*time.Second
	playScene(t, policy, func(s *scene) {
		s.sendOnce(asksFor(30))
		s.sleep(time.Second)
		s.Events = nil
		script := contract.Play(s503)
		s.play(newGet(s), script)
		require.Len(s, script.Attempts(), 1)
		require.Len(s, s.Events, 1)
		assert.Equal(s, httpretry.ReasonMaxElapsed, s.Reason())
		waited := script.Start.Add(script.Attempts()[0].At).Sub(s.start) - time.Second
		assert.GreaterOrEqual(s, waited, 29*time.Second)
		assert.Equal(s, waited, s.Events[0].Elapsed)
	})
}

// Hazard H6: the host of a CooldownError comes from a URL.
func TestCooldownErrorEscapesTheHost(t *testing.T) {
	err := &httpretry.CooldownError{Origin: "http://a.test\x1b[31m\n\u2028",
		Until: time.Date(2006, 1, 2, 15, 4, 5, 0, time.UTC)}
	assert.EqualError(t, err,
		`http://a.test\x1b[31m\n\u2028 asked for a pause until 2006-01-02T15:04:05Z`)
}

// Hazard H3, H5: a cool-down is that of an origin, however it is spelled, and
// of Policy.CooldownKey's key if there is one. It delays other requests, and
// their successes end it. A forged response over http does not affect https.
func TestCooldownKeys(t *testing.T) {
	const credential = "Bearer hunter2"
	byCredential := func(r *http.Request) string { return r.Header.Get("Authorization") }
	byRoute := func(r *http.Request) string { return r.URL.Path }
	nobodys := func(*http.Request) string { return "" }
	const route = "http://a.test/a" // of the request that begins the cool-down
	for _, tt := range []struct {
		name   string
		key    func(*http.Request) string
		other  string
		header string // Authorization of the other
		cools  bool
	}{
		{"path and query", nil, "http://a.test/200/x?y=z", "", true},
		{"case, dot, port, user", nil, "http://me:pw@A.tESt.:80/b", "", true},
		{"port", nil, "http://a.test:8080/b", "", false},
		{"scheme", nil, "https://a.test/b", "", false},
		{"same credential", byCredential, "http://a.test/b", credential, true},
		{"other credential", byCredential, "http://a.test/b", credential + "x", false},
		{"no credential", byCredential, "http://a.test/b", "", false},
		{"same credential elsewhere", byCredential, "http://b.test/b", credential, false},
		{"route", byRoute, "http://a.test/b", credential, false},
		{"same route, any credential", byRoute, route, "", true},
		{"nobody's", nobodys, "http://a.test/b", "", true},
	} {
		policy := httpretry.Policy{MaxAttempts: 1, CooldownKey: tt.key}
		playRow(t, tt.name, policy, func(s *scene) {
			first := contract.Request(s, "GET", route, "")
			other := contract.Request(s, "GET", tt.other, "")
			first.Header.Set("Authorization", credential)
			other.Header.Set("Authorization", tt.header)
			s.do(first, asksFor(30))
			policy.Cooldown = httpretry.CooldownFail
			fail := httpretry.WithPolicy(s.Context(), policy)
			got := s.do(other.WithContext(fail), s200)
			assert.Equal(s, tt.cools, got.err != nil, got.err)
			s.do(other, s200)
			again := s.do(first.WithContext(fail), s200)
			assert.Equal(s, !tt.cools, again.err != nil, again.err)
			for _, e := range append(s.Events, httpretry.Event{Err: got.err}) {
				assert.NotContains(s, fmt.Sprintf("%+v %q", e.Err, e.Err), "hunter2")
			}
		})
	}
}

// CooldownKey is called only if a cool-down of the host exists or begins, and
// at most once for each request.
func TestCooldownKeyIsAskedSparingly(t *testing.T) {
	calls := 0
	policy := contract.RetryEvery(time.Second)
	policy.CooldownKey = func(*http.Request) string { calls++; return "key" }
	for _, mode := range cooldowns {
		policy.Cooldown = mode
		playRow(t, mode.String(), policy, func(s *scene) {
			asks := func(want int, scripts ...script) {
				s.Helper()
				calls = 0
				for _, steps := range scripts {
					s.get(s.Context(), steps...)
				}
				assert.Equal(s, want, calls, scripts)
			}
			fails := script{s500, s200}
			asks(0, script{s200}, script{s404}, fails,
				script{contract.Fails(errConnectionLost), s200}, script{s429, s200},
				script{contract.Status(503, "Retry-After", "0"), s200},
				script{contract.Status(500, "Retry-After", "0"), asksFor(0)})
			refused := func(status int) contract.Step {
				return contract.Status(status, "Retry-After", "30", "X-Should-Retry", "false")
			}
			asks(1, script{refused(429)})
			time.Sleep(time.Minute)
			// although no request has looked at the cool-down since
			asks(0, script{s200}, script{s200}, fails)
			s.do(contract.Request(s, "GET", "http://b.test/", ""), refused(503))
			time.Sleep(time.Minute)
			asks(0, fails, script{s404}, script{s200})
			s.do(contract.Request(s, "GET", "http://c.test/", ""), refused(503))
			asks(0, script{s200}, fails)
			// of a policy without a CooldownKey, while the success is on its way
			time.AfterFunc(time.Second/2, func() { s.sendOnce(asksFor(30)) })
			asks(0, script{taking(time.Second, s200)})
			asks(1, script{s200})
			asks(1, fails) // the key has no cool-down that a success ends
		})
	}
}

// Hazard K4: a panic in CooldownKey, or in an observer of a request that was
// not sent, reaches the caller and leaves nothing open.
func TestCooldownPanics(t *testing.T) {
	for name, tt := range map[string]struct {
		steps    script
		mode     httpretry.Cooldown
		observer bool          // the observer panics; false: the key function
		later    time.Duration // until the host cools down
	}{
		"before the first attempt": {script{s200}, httpretry.CooldownWait, false, 0},
		"refused":                  {script{s200}, httpretry.CooldownFail, true, 0},
		"with the answer":          {script{asksFor(30)}, httpretry.CooldownSend, false, 0},
		"with a success":           {script{s200}, httpretry.CooldownSend, false, 0},
		"before a retry":           {script{s500, s200}, httpretry.CooldownSend, false, 0},
		"after the wait for a retry": {
			script{s500, s200}, httpretry.CooldownSend, false, time.Second / 2},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			policy := contract.RetryEvery(time.Second)
			policy.Cooldown = tt.mode
			policy.CooldownKey = func(*http.Request) string { return panicIf(!tt.observer) }
			observe := func(_ context.Context, e httpretry.Event) {
				panicIf(tt.observer && e.Attempt.Number == 0)
			}
			transport := contract.New(t,
				httpretry.Config{Base: contract.Scripts{}, Policy: policy, Observe: observe})
			// The policy of this request has no CooldownKey.
			plain := httpretry.WithPolicy(t.Context(), httpretry.Policy{MaxAttempts: 1})
			asks := contract.Play(asksFor(30)).For(newGet(t).WithContext(plain))
			time.AfterFunc(tt.later, func() { contract.Send(t, transport, asks) })
			time.Sleep(time.Nanosecond)
			for range 2 {
				body := contract.Counted("text")
				assert.PanicsWithValue(t, "boom", func() {
					req := contract.Streamed(t, "PUT", "http://a.test/", body)
					_, _ = transport.RoundTrip(contract.Play(tt.steps...).For(req))
				})
				assert.Equal(t, 1, body.Closes())
			}
		})
	}
}

func panicIf(now bool) string {
	if now {
		panic("boom")
	}
	return ""
}

// A success allocates nothing while its host, another host, or no host cools
// down. While another host does, it calls no CooldownKey.
func TestCooldownAllocatesNothing(t *testing.T) {
	if contract.RaceEnabled {
		t.Skip("the race detector allocates")
	}
	ok := newInstant().ok
	cfg := fullConfig(contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		if req.URL.Path == "/429" {
			return contract.Play(asksFor(3600)).RoundTrip(req)
		}
		ok.Request = req
		return ok, nil
	}))
	calls := 0
	cfg.Policy.MaxAttempts = 1
	plain := cfg
	plain.Observe = nil
	plain.Policy.CooldownKey = func(*http.Request) string { calls++; return "key" }
	require.True(t, httpretry.IsPlain(plain.Policy))
	waits, fails := cfg, cfg
	waits.Policy.Cooldown, fails.Policy.Cooldown = httpretry.CooldownWait, httpretry.CooldownFail
	for name, cfg := range map[string]httpretry.Config{
		"plain": plain, "send": cfg, "wait": waits, "fail": fails} {
		transport, req := contract.Unchecked(t, cfg), newGet(t)
		success := func() {
			if _, err := transport.RoundTrip(req); err != nil {
				t.Error(err)
			}
		}
		for _, cooling := range []string{"", "http://b.test/429", "http://a.test/429"} {
			if cooling != "" {
				_, err := transport.RoundTrip(contract.Request(t, "GET", cooling, ""))
				require.NoError(t, err)
			}
			if cooling == "http://a.test/429" && name != "send" {
				break // nothing is sent, or a key is made
			}
			assert.Zero(t, testing.AllocsPerRun(1000, success), "%s %s", name, cooling)
		}
	}
	assert.Equal(t, 2, calls, "for the two hosts that cool down")
}

// A value of Cooldown that is none of the three is invalid.
func TestCooldownValidates(t *testing.T) {
	const problem = "Cooldown: Cooldown(7): want CooldownSend, CooldownWait or CooldownFail"
	bad := httpretry.Policy{Cooldown: 7}
	assert.EqualError(t, bad.Validate(), "httpretry: Policy."+problem)
	_, err := httpretry.New(
		httpretry.Config{Policy: bad, Policies: map[string]httpretry.Policy{"a.test": bad}})
	assert.EqualError(t, err,
		"httpretry: Config.Policy."+problem+"\nhttpretry: Config.Policies[\"a.test\"]."+problem)
	for c, want := range map[httpretry.Cooldown]string{
		0: "send", 1: "wait", 2: "fail", 3: "Cooldown(3)", 255: "Cooldown(255)"} {
		assert.Equal(t, want, c.String())
		text, err := json.Marshal(c)
		require.NoError(t, err)
		assert.Equal(t, strconv.Quote(want), string(text))
		assert.Equal(t, c > httpretry.CooldownFail, httpretry.Policy{Cooldown: c}.Validate() != nil)
	}
}
