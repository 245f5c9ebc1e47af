package redisbudget_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
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
	{1, 5, 5, 30 * time.Second}, // the default
	{1, 10, 5, 10 * time.Second},
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
	server   *miniredis.Miniredis // with a clock under control
	versions []version
	begin    time.Time
	jump     time.Duration // of the clock of the server
	now      time.Duration
	process  []simulated
	clocks   map[string]*hostClock // by key
	moments  []moment
	granted  []int64 // to the processes of each version

	onlyRetries bool // succeed, so the Ratio allows few
}

// A simulated process has its counts since the last report, and its lease.
type simulated struct {
	successes int64
	oldest    time.Duration
	moments   []int // the numbers of those with these successes
	helped    int64 // of the successes, those of retries
	refunds   int64 // the cost of these
	leased    int64
	leaseEnds time.Duration
	refuses   time.Duration // until then
	charged   []charged
}

// charged are retries that were charged at one time and have not ended.
type charged struct {
	at   time.Duration // -1: they go back with the next report
	cost int64
}

// A moment has the events at one time, in this order.
type moment struct {
	key                         string // of the budget
	at                          time.Duration
	host                        time.Duration // the host's time, of successes that of their report
	failures, charges, refunded int64         // costs, except for failures
	successes, helped           int64         // helped is how many of them are of retries
}

// A hostClock has the time of a host as the package documentation defines it.
type hostClock struct {
	time, stopped time.Duration
	fails         bool
	failing       time.Duration // no retry is later without a call
}

// pass lets the time pass until now.
func (c *hostClock) pass(now time.Duration) {
	if !c.fails {
		c.time += now - c.stopped
		c.stopped = now
	}
}

// report is a call with successes of which the first was at from.
func (c *hostClock) report(now, from, most time.Duration) {
	if c.fails && from > c.stopped {
		c.time += min(from-c.stopped, most)
		c.stopped, c.fails = from, from <= c.failing
	}
	c.pass(now)
}

// fail is a call for a retry. Others may follow without a call until then.
func (c *hostClock) fail(until time.Duration) {
	c.fails, c.failing = true, max(c.failing, until)
}

func newSimulation(t *testing.T, s setting, r rollout, seed uint64) *simulation {
	sim := &simulation{
		setting: s, r: rand.New(rand.NewPCG(seed, 15)), server: miniredis.RunT(t),
		begin: time.Unix(1_800_000_000, 0), process: make([]simulated, 4),
		clocks: map[string]*hostClock{},
	}
	cfg := s.config()
	cfg.Client, cfg.Timeout = newClient(t, sim.server.Addr()), patient
	sim.versions = r.versions(t, cfg)
	sim.granted = make([]int64, len(sim.versions))
	for _, v := range sim.versions {
		sim.clocks[v.key] = new(hostClock)
	}
	sim.pass(0)
	return sim
}

// pass lets time pass. Keys expire with the clock of the server.
func (s *simulation) pass(d time.Duration) {
	s.now += d
	s.server.SetTime(s.begin.Add(s.now + s.jump))
	if d > 0 {
		s.server.FastForward(d)
	}
	for i := range s.process {
		if p := &s.process[i]; p.leased > 0 && p.leaseEnds <= s.now {
			// It goes back with the next report.
			p.charged = append(p.charged, charged{-1, p.leased})
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
		p.moments = append(p.moments, len(s.moments))
	case 2:
		s.exchange(t, p, v, &m, redisbudget.Report{})
	case 3:
		m.failures = 1
		if p.leased > 0 {
			p.leased--
			p.charged = append(p.charged, charged{s.now, 1})
		} else if p.refuses <= s.now {
			s.exchange(t, p, v, &m, redisbudget.Report{Need: 1 + s.r.Int64N(3), Extra: s.r.Int64N(9)})
		}
	}
	clock := s.clocks[m.key]
	clock.pass(s.now)
	m.host = clock.time
	s.moments = append(s.moments, m)
}

// help lets some of the retries of a process succeed, and returns how many.
func (s *simulation) help(p *simulated) (n int64) {
	p.charged = slices.DeleteFunc(p.charged, func(c charged) bool {
		helps := c.at >= 0 && s.now-c.at <= s.window/2 && s.r.IntN(2) == 0
		if helps {
			n++
			p.refunds += c.cost
		}
		return helps
	})
	p.helped += n
	return n
}

// exchange executes the script for a process with version v. It refunds some of
// its charges.
func (s *simulation) exchange(t *testing.T, p *simulated, v int, m *moment, r redisbudget.Report) {
	p.charged = slices.DeleteFunc(p.charged, func(c charged) bool {
		switch {
		case c.at >= 0 && (s.now-c.at > s.window/2 || s.r.IntN(3) > 0):
			return s.now-c.at > s.window/2
		}
		r.Refunds += c.cost
		return true
	})
	r.Successes, r.Helped = p.successes, p.helped
	r.Refunds += p.refunds
	// The age is never too low.
	r.Age = s.now - p.oldest + time.Duration(s.r.IntN(3))*time.Millisecond
	p.successes, p.helped, p.refunds = 0, 0, 0
	m.refunded = r.Refunds
	granted, left, err := s.versions[v].exchange(t.Context(), r)
	require.NoError(t, err)
	m.charges = granted
	s.granted[v] += granted
	if used := min(granted, r.Need); used > 0 {
		// It is for retries that cost 1 or 2.
		for ; used > 1 && s.r.IntN(2) == 0; used -= 2 {
			p.charged = append(p.charged, charged{s.now, 2})
		}
		p.charged = append(p.charged, slices.Repeat([]charged{{s.now, 1}}, int(used))...)
	}
	if granted > r.Need {
		p.leased, p.leaseEnds = granted-r.Need, s.now+left
	}
	if granted < r.Need {
		p.refuses = s.now + hold
	}
	clock := s.clocks[m.key]
	if r.Successes > 0 {
		clock.report(s.now, s.now-r.Age, s.window/10)
	}
	clock.pass(s.now)
	for _, i := range p.moments {
		s.moments[i].host = clock.time
	}
	p.moments = nil
	if r.Need > 0 {
		clock.fail(max(s.now+left, p.refuses))
	}
}

// requireLaws looks at every interval that begins with a charge or a failure. A
// longer one with the same charges is allowed more. The law is stricter for an
// interval that begins with a failure and has no success.
func (s *simulation) requireLaws(t *testing.T) {
	t.Helper()
	window := s.window.Microseconds()
	for key := range s.clocks {
		isOther := func(m moment) bool { return m.key != key }
		moments := slices.DeleteFunc(slices.Clone(s.moments), isOther)
		for i, first := range moments {
			if first.charges == 0 && first.failures == 0 {
				continue
			}
			successes, net, helped := s.successesBefore(moments, i), int64(0), int64(0)
			outage := first.failures > 0
			for _, last := range moments[i:] {
				outage = outage && last.successes == 0
				successes += last.successes
				helped += last.helped
				net += last.charges - last.refunded
				length := (last.at - first.at).Microseconds() + 1
				most := s.num*successes*window + s.burst*s.den*(window+length) + helped*s.den*window
				if outage {
					most = (s.num*successes + s.burst*s.den) * window
				}
				require.LessOrEqual(t, net*s.den*window, most,
					"%s: %d for %d successes from %v to %v", key, net, successes, first.at, last.at)
			}
		}
	}
}

// successesBefore returns the successes of the Window of the host's time before
// moment i.
func (s *simulation) successesBefore(moments []moment, i int) (n int64) {
	for from, i := moments[i].host-s.window, i-1; i >= 0 && moments[i].host > from; i-- {
		n += moments[i].successes
	}
	return n
}

// simulate requires the laws of some simulations, and returns the charges that
// each version of the rollout was granted.
func simulate(t *testing.T, s setting, r rollout, seeds uint64) []int64 {
	t.Helper()
	granted := make([]int64, 2)
	for seed := range seeds {
		sim := newSimulation(t, s, r, seed)
		sim.onlyRetries = seed%2 == 1
		for range 200 {
			sim.step(t)
		}
		sim.requireLaws(t)
		for i, n := range sim.granted {
			granted[i] += n
		}
	}
	return granted
}

func TestScriptKeepsTheLaw(t *testing.T) {
	for _, s := range settings {
		for _, r := range []rollout{onlyCurrent, releasedFirst} {
			t.Run(s.String()+", "+r.name, func(t *testing.T) {
				granted := simulate(t, s, r, 5)
				assert.Greater(t, granted[0]+granted[1], int64(100), "hardly a retry is allowed")
			})
		}
	}
}

// A play is a test of the script in steps, with a Window of ten seconds, in slots
// of a second. The first step is at the beginning of a slot.
type play struct {
	name   string
	ratio  float64 // 0: 0.1
	burst  int     // 0: the default, 5
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

// rich is a retry with a lease of eight more, which lasts a second.
func rich() move {
	return move{Report: redisbudget.Report{Successes: 1000, Need: 1, Extra: 8}, want: 9}
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
		retries(0, 5, 5), successes(0, 100, 0), retries(0, 99, 10),
		retries(9*time.Second, 1, 0), // the charges count, too
		retries(time.Second, 1, 0),
	}},
	{name: "successes and charges expire", burst: -1, moves: []move{
		successes(0, 20, 0), successes(5*time.Second, 20, 0), retries(0, 9, 4),
		successes(time.Second, 10, 0), retries(3900*time.Millisecond, 9, 1),
		successes(200*time.Millisecond, 1, 0), retries(0, 1, 0), // 31 successes, 5 charges
		successes(200*time.Millisecond, 1, 0), retries(4800*time.Millisecond, 9, 0), // 12, 1
		successes(200*time.Millisecond, 10, 0), retries(0, 9, 1),
	}},
	{name: "a success counts from its age", burst: -1, moves: []move{
		successes(0, 100, 9*time.Second), retries(0, 2, 2), successes(time.Second, 1, 0), retries(0, 1, 0),
	}},
	{name: "an old success does not count", burst: -1, moves: []move{
		successes(0, 100, 10*time.Second), retries(0, 1, 0),
	}},
	{name: "a ratio with a binary fraction below it", ratio: 0.29, burst: -1, moves: []move{
		successes(0, 100, 0), retries(0, 99, 29),
	}},
	{name: "refunds cancel charges", moves: []move{
		retries(0, 5, 5), refunds(2*time.Second, 2), retries(0, 5, 2), refunds(time.Minute, 9), retries(0, 9, 5),
	}},
	{name: "refunds do not exceed the burst", moves: []move{
		refunds(0, 100), retries(0, 9, 5), refunds(0, 9), retries(0, 9, 5),
	}},
	{name: "a refund is for one slot", moves: []move{
		retries(0, 2, 2), retries(time.Second, 2, 2), refunds(0, 2), retries(0, 9, 3),
	}},
	{name: "the burst is back a window after a success", moves: []move{
		retries(0, 5, 5), successes(time.Second, 1, 0), retries(4*time.Second, 9, 0),
		successes(time.Second, 1, 0), retries(3900*time.Millisecond, 9, 0),
		successes(200*time.Millisecond, 1, 0), retries(0, 9, 5),
	}},
	{name: "time goes on while some retries fail", ratio: 0.001, moves: slices.Concat([]move{retries(0, 5, 5)},
		slices.Repeat([]move{{after: 900 * time.Millisecond, Report: redisbudget.Report{Successes: 1, Need: 1}}}, 11),
		[]move{{after: 900 * time.Millisecond, Report: redisbudget.Report{Successes: 1, Need: 9}, want: 5}})},
	{name: "an outage is no part of the time", moves: []move{
		retries(0, 5, 5), successes(time.Hour, 1, 0), retries(0, 1, 0),
		successes(200*time.Millisecond, 1, 0), retries(8700*time.Millisecond, 1, 0),
		successes(200*time.Millisecond, 1, 0), retries(0, 9, 5),
	}},
	{name: "a success of before the failure does not let time go on", moves: []move{
		retries(500*time.Millisecond, 5, 5), successes(time.Second, 1, time.Second+time.Microsecond),
		retries(time.Minute, 1, 0),
	}},
	{name: "nor back", burst: -1, moves: []move{
		successes(0, 20, 0), retries(5*time.Second, 9, 2), successes(time.Millisecond, 1, 5*time.Second),
		successes(200*time.Millisecond, 1, 0), successes(4800*time.Millisecond, 10, 0), retries(0, 9, 0),
	}},
	{name: "after one during a lease, it does not go on by itself", moves: []move{
		rich(), successes(500*time.Millisecond, 1, 0), retries(time.Minute, 999, 96),
	}},
	{name: "nor after one while a process refuses retries", moves: []move{
		retries(0, 9, 5), successes(50*time.Millisecond, 1, 0), retries(time.Minute, 1, 0),
		successes(hold, 1, 0), retries(time.Minute, 1, 0),
		successes(hold+time.Millisecond, 1, 0), retries(time.Minute, 9, 5),
	}},
	{name: "a refusal does not shorten the time of a lease", moves: []move{
		rich(), retries(500*time.Millisecond, 999, 96), successes(300*time.Millisecond, 1, 0),
		retries(time.Minute, 999, 0),
	}},
	{name: "nor a grant that of a refusal", moves: []move{
		retries(0, 6, 5), {Report: redisbudget.Report{Refunds: 1, Need: 1}, want: 1},
		successes(50*time.Millisecond, 1, 0), retries(time.Minute, 1, 0),
	}},
	{name: "a retry that succeeds cancels one more charge", moves: []move{
		retries(0, 5, 5), helped(time.Second, 2, 0), retries(0, 9, 2),
	}},
	{name: "and its own", moves: []move{
		retries(0, 5, 5),
		{after: time.Second, Report: redisbudget.Report{Successes: 2, Helped: 2, Refunds: 2, Need: 9}, want: 4},
	}},
	{name: "but saves nothing for later ones", moves: []move{
		helped(0, 4, 0), retries(0, 2, 2), helped(time.Second, 4, 0), retries(0, 9, 5),
	}},
	{name: "and cancels no other of its slot", moves: []move{
		retries(0, 2, 2), helped(999*time.Millisecond, 2, 0), retries(0, 9, 3),
	}},
	{name: "nor one of an outage since then", moves: []move{
		retries(0, 2, 2), retries(2*time.Second, 3, 3), helped(500*time.Millisecond, 9, time.Second),
		retries(0, 9, 2),
	}},
	{name: "even if many reports of before are late", moves: []move{
		retries(0, 1, 1), retries(10*time.Second, 3, 3), helped(500*time.Millisecond, 1, 5*time.Second),
		helped(500*time.Millisecond, 9, 4500*time.Millisecond), helped(500*time.Millisecond, 9, 4*time.Second),
		helped(500*time.Millisecond, 9, 3500*time.Millisecond), helped(500*time.Millisecond, 9, 3*time.Second),
		retries(0, 9, 5-3+3), // 37 successes
	}},
	{name: "a lease is a quarter of the retries left, without the burst", moves: []move{
		{Report: redisbudget.Report{Need: 1, Extra: 8}, want: 1},
		{Report: redisbudget.Report{Successes: 101, Need: 1, Extra: 8}, want: 1 + 2},
		{Report: redisbudget.Report{Need: 4, Extra: 100}, want: 4},
		{Report: redisbudget.Report{Successes: 1000, Need: 1, Extra: 8}, want: 9},
	}},
	{name: "the clock goes back", moves: []move{
		successes(0, 20, 0), clock(-time.Hour), retries(time.Second, 9, 7), retries(time.Second, 1, 0),
		successes(9*time.Second, 1, 0), retries(2*time.Second, 9, 0), successes(200*time.Millisecond, 10, 0),
		retries(0, 9, 1),
	}},
	{name: "the clock goes forward", moves: []move{
		retries(0, 9, 5), clock(time.Hour), retries(0, 1, 0), clock(-time.Hour), retries(time.Minute, 1, 0),
	}},
}

func TestScript(t *testing.T) {
	for _, p := range plays {
		for _, r := range []rollout{onlyCurrent, releasedFirst, currentFirst} {
			t.Run(p.name+"/"+r.name, func(t *testing.T) {
				sim := newSimulation(t, setting{1, 10, 5, 10 * time.Second}, onlyCurrent, 0)
				pass := func(m move) {
					sim.jump += m.jump
					sim.pass(m.after)
				}
				p.run(t, r, newClient(t, sim.server.Addr()), pass)
			})
		}
	}
}

// run runs p with moves of the versions in turn. As long as the versions share a
// key, each has to read the other's fields. pass lets the time before a move
// pass.
func (p play) run(t *testing.T, r rollout, client *redis.Client, pass func(move)) {
	versions := r.versions(t, redisbudget.Config{
		Client: other{client}, Timeout: patient,
		Ratio: cmp.Or(p.ratio, 0.1), Burst: p.burst, Window: 10 * time.Second})
	if !shareKey(versions) {
		t.Skip("the versions have budgets of their own")
	}
	turn := 0
	for i, m := range p.moves {
		pass(m)
		if m.Report == (redisbudget.Report{}) {
			continue
		}
		v := versions[turn%len(versions)]
		turn++
		granted, left, err := v.exchange(t.Context(), m.Report)
		require.NoError(t, err)
		assert.Equal(t, m.want, granted, "move %d", i)
		wantLeft := time.Duration(0)
		if m.Extra > 0 && granted > m.Need {
			wantLeft = time.Second
		}
		assert.Equal(t, wantLeft, left, "move %d", i)
	}
	exists, err := client.Exists(t.Context(), versions[0].key).Result()
	require.NoError(t, err)
	assert.Equal(t, !p.isGone, exists == 1)
}

// However often processes ask, the state of a host takes little memory.
func TestStateIsSmall(t *testing.T) {
	sim := newSimulation(t, setting{1, 10, 1000, 10 * time.Second}, onlyCurrent, 0)
	v := sim.versions[0]
	for range 500 {
		granted, _, err := v.exchange(t.Context(), redisbudget.Report{Need: 1, Successes: 1, Age: time.Second})
		require.NoError(t, err)
		require.EqualValues(t, 1, granted)
		sim.pass(50 * time.Millisecond)
	}
	slots := sim.server.HGet(v.key, "slots")
	assert.LessOrEqual(t, len(strings.Fields(slots)), 17, slots)
}
