package redisbudget_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/redisbudget"
)

const target = "https://a.test"

// A setting is a Config in whole numbers.
type setting struct {
	num, den int64 // ratio
	burst    int64
	window   time.Duration
}

func (s setting) String() string {
	return fmt.Sprintf("%d:%d, %d in %v", s.num, s.den, s.burst, s.window)
}

func (s setting) config() redisbudget.Config {
	burst := int(s.burst)
	if burst == 0 {
		burst = -1
	}
	return redisbudget.Config{Ratio: float64(s.num) / float64(s.den), Burst: burst, Window: s.window}
}

var settings = []setting{
	{1, 10, 5, 10 * time.Second}, // the default
	{1, 10, 0, 10 * time.Second},
	{2, 5, 2, 20 * time.Second},
	{1, 3, 1, 10 * time.Second},
	{29, 100, 3, 17 * time.Second},
	{5, 2, 1, time.Minute},
}

// hold is how long a process refuses retries without a question, in the time of
// miniredis.
const hold = 100 * time.Millisecond

// A simulation is processes that use the script, and the history of the one
// host. The processes have the versions in turn.
type simulation struct {
	setting
	r        *rand.Rand
	server   *miniredis.Miniredis // with a clock under control; nil: another, in real time
	versions []version
	begin    time.Time
	jump     time.Duration // of the clock of the server
	now      time.Duration
	hold     time.Duration
	process  []simulated
	moments  []moment
	granted  []int64 // to the processes of each version

	onlyRetries bool // succeed, so the Ratio allows few

	margin  time.Duration // by which successes seem older than they are, at least
	slowest time.Duration // call of the server
}

// A simulated process has its counts since the last report, and its lease.
type simulated struct {
	successes int64
	oldest    time.Duration
	helped    int64 // of the successes, those of retries
	refunds   int64 // of these
	leased    int64
	leaseEnds time.Duration
	refuses   time.Duration // until then
	charged   []time.Duration
}

// A moment has the events at one time, or of one call of the server, in this
// order.
type moment struct {
	key                         string // of the budget
	at, until                   time.Duration
	failures, charges, refunded int64
	successes, helped           int64 // helped is how many of them are of retries
}

func newSimulation(t *testing.T, s setting, r rollout, seed uint64) *simulation {
	sim := &simulation{setting: s, hold: hold, server: miniredis.RunT(t)}
	cfg := s.config()
	cfg.Client, cfg.Timeout = newClient(t, sim.server.Addr()), patient
	sim.start(r.versions(t, cfg), seed)
	sim.begin = time.Unix(1_800_000_000, 0)
	sim.pass(0)
	return sim
}

// newRealSimulation returns a simulation with a server at addr.
func newRealSimulation(t *testing.T, s setting, r rollout, addr string, seed uint64) *simulation {
	sim := &simulation{setting: s, hold: s.window / 100, margin: s.window / 10}
	cfg := s.config()
	cfg.Client, cfg.Timeout, cfg.FlushInterval = other{newClient(t, addr)}, s.window/10, sim.hold
	cfg.Namespace = fmt.Sprintf("%d-%d-%d/%d", s.num, s.den, s.burst, seed)
	sim.start(r.versions(t, cfg), seed)
	sim.begin = time.Now()
	return sim
}

func (s *simulation) start(versions []version, seed uint64) {
	s.r = rand.New(rand.NewPCG(seed, 15))
	s.versions, s.granted = versions, make([]int64, len(versions))
	s.process = make([]simulated, 4)
}

// pass lets time pass. Keys expire with the clock of the server.
func (s *simulation) pass(d time.Duration) {
	if s.server == nil {
		time.Sleep(d)
		s.now = time.Since(s.begin)
	} else {
		s.now += d
		s.server.SetTime(s.begin.Add(s.now + s.jump))
		if d > 0 {
			s.server.FastForward(d)
		}
	}
	for i := range s.process {
		if p := &s.process[i]; p.leased > 0 && p.leaseEnds <= s.now {
			// It goes back with the next report.
			p.charged = append(p.charged, slices.Repeat([]time.Duration{-1}, int(p.leased))...)
			p.leased = 0
		}
	}
}

// pause returns a wait of the kind that finds mistakes.
func (s *simulation) pause() time.Duration {
	switch s.r.IntN(12) {
	case 0:
		return s.window + time.Duration(s.r.IntN(3)-1)*time.Microsecond
	case 1:
		return s.window/10 + time.Duration(s.r.IntN(3)-1)*time.Microsecond
	case 2:
		return time.Duration(s.r.Int64N(int64(2*s.window))) / 1000 * 1000
	case 3, 4, 5:
		return time.Duration(s.r.Int64N(int64(s.window/20))) / 1000 * 1000
	}
	return 0
}

// step lets one process do something.
func (s *simulation) step(t *testing.T) {
	s.pass(s.pause())
	i := s.r.IntN(len(s.process))
	p, v := &s.process[i], i%len(s.versions)
	m := moment{key: s.versions[v].key, at: s.now}
	switch s.r.IntN(4) {
	case 0, 1: // successes that are reported later
		if p.successes == 0 {
			p.oldest = s.now
		}
		if !s.onlyRetries {
			m.successes = int64(s.r.IntN(40))
		}
		m.helped = s.help(p)
		m.successes += m.helped
		p.successes += m.successes
	case 2:
		s.exchange(t, p, v, &m, redisbudget.Report{})
	case 3:
		m.failures = 1
		if p.leased > 0 {
			p.leased--
			p.charged = append(p.charged, s.now)
		} else if p.refuses <= s.now {
			s.exchange(t, p, v, &m, redisbudget.Report{Need: 1 + s.r.Int64N(3), Extra: s.r.Int64N(9)})
		}
	}
	m.until = s.now
	s.moments = append(s.moments, m)
}

// help lets some of the retries of a process succeed, and returns how many.
func (s *simulation) help(p *simulated) (n int64) {
	p.charged = slices.DeleteFunc(p.charged, func(at time.Duration) bool {
		helps := at >= 0 && s.now-at <= s.window/2 && s.r.IntN(2) == 0
		if helps {
			n++
		}
		return helps
	})
	p.helped += n
	p.refunds += n
	return n
}

// exchange executes the script for a process with version v. It refunds some of
// its charges.
func (s *simulation) exchange(t *testing.T, p *simulated, v int, m *moment, r redisbudget.Report) {
	p.charged = slices.DeleteFunc(p.charged, func(at time.Duration) bool {
		switch {
		case at >= 0 && (s.now-at > s.window/2 || s.r.IntN(3) > 0):
			return at >= 0 && s.now-at > s.window/2
		}
		r.Refunds++
		return true
	})
	r.Successes, r.Helped = p.successes, p.helped
	r.Refunds += p.refunds
	// The age is never too low.
	r.Age = s.now - p.oldest + s.margin + time.Duration(s.r.IntN(3))*time.Millisecond
	p.successes, p.helped, p.refunds = 0, 0, 0
	m.refunded = r.Refunds
	granted, left, err := s.versions[v].exchange(t.Context(), r)
	require.NoError(t, err)
	m.charges = granted
	s.granted[v] += granted
	used := min(granted, r.Need)
	p.leased, p.leaseEnds = granted-used, s.now+left
	p.charged = append(p.charged, slices.Repeat([]time.Duration{s.now}, int(used))...)
	if granted < r.Need {
		p.refuses = s.now + s.hold
	}
	s.pass(0)
	s.slowest = max(s.slowest, s.now-m.at)
}

// histories returns the moments of each budget.
func (s *simulation) histories() map[string][]moment {
	all := map[string][]moment{}
	for _, m := range s.moments {
		all[m.key] = append(all[m.key], m)
	}
	return all
}

// requireLaw looks at every interval that begins and ends with a charge. A
// longer one with the same charges is allowed more.
func (s *simulation) requireLaw(t *testing.T) {
	t.Helper()
	window := s.window.Microseconds()
	for key, moments := range s.histories() {
		for i, first := range moments {
			if first.charges == 0 {
				continue
			}
			successes, net, helped := s.successesBefore(moments, i), int64(0), int64(0)
			for _, last := range moments[i:] {
				successes += last.successes
				helped += last.helped
				net += last.charges - last.refunded
				length := (last.until - first.at).Microseconds() + 1
				most := s.num*successes*window + s.burst*s.den*(window+length) + helped*s.den*window
				require.LessOrEqual(t, net*s.den*window, most,
					"%s: %d for %d successes from %v to %v", key, net, successes, first.at, last.until)
			}
		}
	}
}

// successesBefore returns the successes of the Window before moment i.
func (s *simulation) successesBefore(moments []moment, i int) (n int64) {
	for from, i := moments[i].at-s.window, i-1; i >= 0 && moments[i].at > from; i-- {
		n += moments[i].successes
	}
	return n
}

// requireOutageLaw looks at every interval without a success that begins with a
// failure.
func (s *simulation) requireOutageLaw(t *testing.T) {
	t.Helper()
	for key, moments := range s.histories() {
		for i, first := range moments {
			if first.failures == 0 {
				continue
			}
			successes, net := s.successesBefore(moments, i), int64(0)
			for _, last := range moments[i:] {
				if last.successes > 0 {
					break
				}
				net += last.charges - last.refunded
				require.LessOrEqual(t, net*s.den, s.num*successes+s.burst*s.den,
					"%s: %d for %d successes from %v to %v", key, net, successes, first.at, last.until)
			}
		}
	}
}

func TestScriptKeepsTheLaw(t *testing.T) {
	for _, s := range settings {
		for _, r := range []rollout{onlyCurrent, releasedFirst} {
			t.Run(s.String()+", "+r.name, func(t *testing.T) {
				var granted int64
				for seed := range uint64(5) {
					sim := newSimulation(t, s, r, seed)
					sim.onlyRetries = seed%2 == 1
					for range 200 {
						sim.step(t)
					}
					sim.requireLaw(t)
					sim.requireOutageLaw(t)
					for _, n := range sim.granted {
						granted += n
					}
				}
				assert.Greater(t, granted, int64(100), "hardly a retry is allowed")
			})
		}
	}
}

// A play is a test of the script in steps, with the default settings: a Ratio
// of 0.1 and a Burst of 5 in slots of a second. The first step is at the
// beginning of a slot.
type play struct {
	name   string
	ratio  float64 // 0: the default
	burst  int     // 0: the default
	moves  []move
	isGone bool // in the end, the server has forgotten the host
}

type move struct {
	after time.Duration
	jump  time.Duration // of the server's clock
	redisbudget.Report
	want int64 // retries granted
}

func successes(after time.Duration, n int64, age time.Duration) move {
	return move{after: after, Report: redisbudget.Report{Successes: n, Age: age}}
}

// helped are successes of retries.
func helped(after time.Duration, n int64, age time.Duration) move {
	m := successes(after, n, age)
	m.Helped = n
	return m
}

func retries(after time.Duration, need, want int64) move {
	return move{after: after, Report: redisbudget.Report{Need: need}, want: want}
}

func refunds(after time.Duration, n int64) move {
	return move{after: after, Report: redisbudget.Report{Refunds: n}}
}

func clock(jump time.Duration) move { return move{jump: jump} }

var plays = []play{
	{name: "an outage gets the burst once", moves: []move{
		retries(0, 3, 3), retries(time.Second, 3, 2), retries(time.Minute, 1, 0), retries(23*time.Hour, 1, 0),
	}},
	{name: "a failing host is forgotten after a day", isGone: true, moves: []move{
		retries(0, 6, 5), {after: 25 * time.Hour},
	}},
	{name: "another host is forgotten after a window", isGone: true, moves: []move{
		successes(0, 6, 0), {after: 11 * time.Second},
	}},
	{name: "the ratio of the successes in a window", moves: []move{
		retries(0, 5, 5), successes(0, 100, 0), retries(0, 9, 5),
		retries(9*time.Second, 1, 0), // the charges count, too
		retries(time.Second, 1, 0),
	}},
	{name: "successes and charges expire", burst: -1, moves: []move{
		successes(0, 20, 0), successes(5*time.Second, 20, 0), retries(0, 2, 2), retries(4*time.Second, 3, 2),
		successes(time.Second, 20, 0), retries(0, 1, 0), retries(5*time.Second, 9, 0), retries(4*time.Second, 9, 2),
	}},
	{name: "a success counts from its age", burst: -1, moves: []move{
		successes(0, 100, 9*time.Second), retries(0, 2, 2), retries(time.Second, 1, 0),
	}},
	{name: "an old success does not count", burst: -1, moves: []move{
		successes(0, 100, 10*time.Second), retries(0, 1, 0),
	}},
	{name: "a ratio with a binary fraction below it", ratio: 0.29, burst: -1, moves: []move{
		successes(0, 100, 0), retries(0, 99, 29),
	}},
	{name: "refunds cancel charges and return tokens", moves: []move{
		retries(0, 5, 5), refunds(2*time.Second, 2), retries(0, 5, 2), refunds(time.Minute, 9), retries(0, 1, 0),
	}},
	{name: "refunds do not exceed the burst", moves: []move{
		refunds(0, 100), retries(0, 9, 5), refunds(0, 9), retries(0, 9, 5),
	}},
	{name: "a success that is younger than the slot refills the burst", moves: []move{
		retries(0, 5, 5), successes(time.Second, 1, 0), retries(4*time.Second, 9, 2),
		successes(time.Second, 1, 0), retries(30*time.Second, 9, 5),
	}},
	{name: "a success of before the failure does not refill it", moves: []move{
		retries(500*time.Millisecond, 5, 5), successes(time.Second, 1, time.Second+time.Microsecond),
		retries(time.Minute, 1, 0),
	}},
	{name: "nor does one during a lease", moves: []move{
		retries(500*time.Millisecond, 5, 5), successes(time.Second, 1, 501*time.Millisecond),
		retries(time.Minute, 1, 0),
	}},
	{name: "nor does one while a process refuses retries", moves: []move{
		retries(0, 5, 5), retries(1500*time.Millisecond, 1, 0), successes(50*time.Millisecond, 1, 0),
		retries(time.Minute, 1, 0), successes(hold, 1, 0), retries(2*time.Second, 9, 1),
	}},
	{name: "a refusal does not shorten the time of a grant", moves: []move{
		retries(500*time.Millisecond, 6, 5), successes(200*time.Millisecond, 1, 0), retries(time.Minute, 1, 0),
	}},
	{name: "nor a grant that of a refusal", moves: []move{
		retries(950*time.Millisecond, 6, 5), {Report: redisbudget.Report{Refunds: 1, Need: 1}, want: 1},
		successes(70*time.Millisecond, 1, 0), retries(time.Minute, 1, 0),
	}},
	{name: "a refund is for one slot", moves: []move{
		retries(0, 2, 2), retries(time.Second, 2, 2), refunds(0, 2), retries(0, 9, 3),
	}},
	{name: "a refund does not exceed the burst in the same call", moves: []move{
		retries(0, 5, 5), successes(time.Second, 1, 0),
		{after: 8 * time.Second, Report: redisbudget.Report{Refunds: 5, Need: 9}, want: 5},
	}},
	{name: "a part of a token is none", moves: []move{
		retries(0, 5, 5), successes(time.Second, 1, 0), successes(1200*time.Millisecond, 1, 0),
		successes(600*time.Millisecond, 1, 0), retries(0, 1, 0), successes(time.Second, 1, 0),
		retries(400*time.Millisecond, 9, 1),
	}},
	{name: "a retry that succeeds gives a token", moves: []move{
		retries(0, 5, 5), helped(500*time.Millisecond, 2, 0), retries(0, 9, 2),
	}},
	{name: "and its charge back", moves: []move{
		retries(0, 5, 5),
		{after: 500 * time.Millisecond, Report: redisbudget.Report{Successes: 2, Helped: 2, Refunds: 2, Need: 9}, want: 4},
	}},
	{name: "but never more than the burst", moves: []move{
		helped(0, 9, 0), retries(0, 2, 2), helped(500*time.Millisecond, 9, 0), retries(0, 9, 5),
	}},
	{name: "a success gives no token that was taken later", moves: []move{
		retries(0, 2, 2), retries(500*time.Millisecond, 2, 2), helped(300*time.Millisecond, 9, 301*time.Millisecond),
		retries(0, 9, 3), helped(199*time.Millisecond, 9, 100*time.Millisecond), retries(0, 9, 2),
		helped(time.Millisecond, 9, 100*time.Millisecond), retries(0, 9, 3),
	}},
	{name: "time gives the tokens that were taken last", moves: []move{
		retries(0, 2, 2), retries(2500*time.Millisecond, 2, 2), successes(500*time.Millisecond, 1, 0),
		helped(4*time.Second, 2, 4500*time.Millisecond), retries(0, 9, 5),
	}},
	{name: "a lease is a quarter of the retries left, and no token", moves: []move{
		{Report: redisbudget.Report{Need: 1, Extra: 8}, want: 1},
		{Report: redisbudget.Report{Successes: 101, Need: 1, Extra: 8}, want: 1 + 2},
		{Report: redisbudget.Report{Need: 4, Extra: 100}, want: 4},
		{Report: redisbudget.Report{Successes: 1000, Need: 1, Extra: 8}, want: 9},
	}},
	{name: "the clock goes back", moves: []move{
		successes(0, 20, 0), clock(-time.Hour), retries(time.Second, 9, 7), retries(time.Second, 1, 0),
		successes(9*time.Second, 1, 0), retries(2*time.Second, 9, 1),
	}},
	{name: "the clock goes forward", moves: []move{
		retries(0, 9, 5), clock(time.Hour), retries(0, 1, 0), clock(-time.Hour), retries(time.Minute, 1, 0),
	}},
}

func TestScript(t *testing.T) {
	for _, p := range plays {
		for _, r := range []rollout{onlyCurrent, releasedFirst, currentFirst} {
			t.Run(p.name+"/"+r.name, func(t *testing.T) { p.run(t, r) })
		}
	}
}

// run runs p with moves of the versions in turn. As long as the versions share a
// key, each has to read the other's fields.
func (p play) run(t *testing.T, r rollout) {
	sim := newSimulation(t, setting{1, 10, 5, 10 * time.Second}, onlyCurrent, 0)
	versions := r.versions(t, redisbudget.Config{
		Client: newClient(t, sim.server.Addr()), Timeout: patient, Ratio: p.ratio, Burst: p.burst})
	if !shareKey(versions) {
		t.Skip("the versions have budgets of their own")
	}
	turn := 0
	for i, m := range p.moves {
		sim.jump += m.jump
		sim.pass(m.after)
		if m.Report == (redisbudget.Report{}) {
			continue
		}
		v := versions[turn%len(versions)]
		turn++
		granted, left, err := v.exchange(t.Context(), m.Report)
		require.NoError(t, err)
		assert.Equal(t, m.want, granted, "move %d", i)
		assert.Greater(t, left, time.Duration(0))
		assert.LessOrEqual(t, left, time.Second)
	}
	assert.Equal(t, !p.isGone, sim.server.Exists(versions[0].key))
}

// The ticks of the tokens of a large Burst take little memory.
func TestTicksOfALargeBurst(t *testing.T) {
	sim := newSimulation(t, setting{1, 10, 1000, 10 * time.Second}, onlyCurrent, 0)
	v := sim.versions[0]
	take := func(n int64) (granted int64) {
		granted, _, err := v.exchange(t.Context(), redisbudget.Report{Need: n})
		require.NoError(t, err)
		return granted
	}
	for range 200 {
		require.EqualValues(t, 1, take(1))
		sim.pass(50 * time.Millisecond)
	}
	ticks := sim.server.HGet(v.key, "taken")
	assert.LessOrEqual(t, len(strings.Fields(ticks)), 52)
	t.Logf("%d bytes: %s", len(ticks), ticks)
	// Those of the last half of a Window have their times.
	_, _, err := v.exchange(t.Context(), redisbudget.Report{
		Successes: 1, Helped: 1000, Age: 4 * time.Second})
	require.NoError(t, err)
	assert.EqualValues(t, 1000-80, take(9999), "%s", ticks)

	// A process with a smaller Burst finds none.
	small := newBudget(t, redisbudget.Config{
		Client: newClient(t, sim.server.Addr()), Timeout: patient})
	granted, _, err := small.Exchange(t.Context(), target, redisbudget.Report{Need: 1})
	require.NoError(t, err)
	assert.Zero(t, granted)
}
