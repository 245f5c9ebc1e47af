package retrydebug

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
)

// state is what a response shows. Its JSON is described in the package
// documentation.
type state struct {
	Time       time.Time    `json:"time"`
	Transports []*transport `json:"transports"`

	Policies bool `json:"-"` // was asked for
	Refresh  bool `json:"-"`
}

type transport struct {
	Name     string   `json:"name"`
	File     *file    `json:"file,omitempty"`
	Policies []policy `json:"policies,omitempty"`
	Origins  []origin `json:"origins"`
}

// file is the file of a Reloader.
type file struct {
	Path      string     `json:"path"`
	ChangedAt *time.Time `json:"changedAt"`
	Error     string     `json:"error"`
}

type policy struct {
	Key    string  `json:"key"`
	Fields []field `json:"fields"`
}

type field struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"`
}

type origin struct {
	Origin             string     `json:"origin"`
	Waiting            int        `json:"waiting"`
	CooldownUntil      *time.Time `json:"cooldownUntil"`
	LastFailure        string     `json:"lastFailure"`
	LastFailureAt      *time.Time `json:"lastFailureAt"`
	FailedWithoutRetry int        `json:"failedWithoutRetry"`
	Budgets            []budget   `json:"budgets"`

	Trouble            trouble `json:"-"`
	attempts, failures int     // of the last minute, of all budgets
}

type budget struct {
	Key           string `json:"key"`
	Balance       *int   `json:"balance"`
	Successes     int    `json:"successes"`
	FailedRetries int    `json:"failedRetries"`

	RecentSuccesses int `json:"recentSuccesses"`
	RecentFailures  int `json:"recentFailures"`
}

// state returns the state of each RetryTransport, in the order of the package
// documentation.
func (h handler) state(now time.Time, policies bool) *state {
	s := &state{Time: now, Policies: policies}
	for _, source := range h {
		t := &transport{Name: source.name, Origins: []origin{}}
		for _, status := range source.origins() {
			t.Origins = append(t.Origins, originOf(&status, now))
		}
		slices.SortStableFunc(t.Origins, byTrouble)
		if source.reloader != nil {
			t.readFile(source.reloader, policies)
		}
		s.Transports = append(s.Transports, t)
	}
	slices.SortStableFunc(s.Transports, func(a, b *transport) int {
		return cmp.Compare(a.trouble(), b.trouble())
	})
	return s
}

func originOf(s *httpretry.OriginStatus, now time.Time) origin {
	o := origin{
		Origin: s.Origin, Waiting: s.Waiting, CooldownUntil: orNull(s.CooldownUntil),
		LastFailure: s.LastFailure, LastFailureAt: orNull(s.LastFailureAt),
		FailedWithoutRetry: s.FailedWithoutRetry, Budgets: make([]budget, len(s.Budgets)),
	}
	for i, b := range s.Budgets {
		o.Budgets[i] = budget{Key: b.Key, Successes: b.Successes, FailedRetries: b.FailedRetries,
			RecentSuccesses: b.RecentSuccesses, RecentFailures: b.RecentFailures}
		if b.BalanceKnown {
			o.Budgets[i].Balance = &b.Balance
		}
		o.attempts += b.RecentSuccesses + b.RecentFailures
		o.failures += b.RecentFailures
	}
	o.Trouble = troubleOf(&o, now)
	return o
}

// readFile adds the file of r, and its policies if they are wanted.
func (t *transport) readFile(r *policyfile.Reloader, policies bool) {
	f, at, err := r.Last()
	t.File = &file{Path: r.Path, ChangedAt: orNull(at)}
	if err != nil {
		t.File.Error = err.Error()
	}
	if !policies || f == nil {
		return
	}
	for _, key := range append([]string{""}, slices.Sorted(maps.Keys(f.Policies()))...) {
		p := policy{Key: key}
		for _, of := range f.Fields(key) {
			p.Fields = append(p.Fields, field{of.Name, of.Value, of.From})
		}
		t.Policies = append(t.Policies, p)
	}
}

// orNull returns t in UTC, or nil if t is zero.
func orNull(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func (s *state) json() ([]byte, error) {
	body, err := json.MarshalIndent(s, "", "  ")
	return append(body, '\n'), err
}

// trouble is the worst problem of an origin. Lower values are worse.
type trouble int

const (
	coolingDown trouble = iota
	outOfRetries
	waiting
	failing
	someFail
	noTrouble
	troubles // the number of values
)

// String returns the text on the page.
func (t trouble) String() string {
	return [troubles]string{
		"cooling down", "out of retries", "waiting", "failing", "some fail", "ok",
	}[t]
}

// Class returns the class in the style.
func (t trouble) Class() string {
	return [troubles]string{"cooling", "empty", "waiting", "failing", "some", "ok"}[t]
}

// recent is how long an attempt that failed is trouble.
const recent = time.Minute

func troubleOf(o *origin, now time.Time) trouble {
	switch {
	case o.CooldownUntil != nil:
		return coolingDown
	case slices.ContainsFunc(o.Budgets, func(b budget) bool {
		return b.Balance != nil && *b.Balance <= 0
	}):
		return outOfRetries
	case o.Waiting > 0:
		return waiting
	case o.LastFailureAt == nil || now.Sub(*o.LastFailureAt) >= recent:
		return noTrouble
	case 2*o.failures < o.attempts:
		return someFail
	default: // or a Budget that does not count
		return failing
	}
}

// byTrouble compares two origins.
func byTrouble(a, b origin) int {
	failedAt := func(o origin) time.Time {
		if o.LastFailureAt == nil {
			return time.Time{}
		}
		return *o.LastFailureAt
	}
	return cmp.Or(
		cmp.Compare(a.Trouble, b.Trouble),
		cmp.Compare(b.Waiting, a.Waiting),
		failedAt(b).Compare(failedAt(a)),
		cmp.Compare(a.Origin, b.Origin),
	)
}

// trouble returns that of the first of its origins, which are sorted. A file
// whose last change is not in effect is worse than all.
func (t *transport) trouble() trouble {
	switch {
	case t.File != nil && t.File.Error != "":
		return -1
	case len(t.Origins) == 0:
		return noTrouble
	}
	return t.Origins[0].Trouble
}
