package policyfile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/defaults"
	"github.com/seed421102f4/httpretry/policies"
	"github.com/seed421102f4/httpretry/strategies"
)

// A field is a field of Policy or HostBudget that a file may have. The parser,
// Fields and the schema use it.
type field struct {
	name  string // in a file
	goAs  string // in Go; of a list of statuses, the field that it changes
	kind  kind
	zero  string // the meaning of the zero value
	about string // for the schema
}

// A kind is a type of values in a file.
type kind struct {
	// want describes the values.
	want string
	// read returns the value of n. Its error has no path and no position. It is
	// errUnwanted if n is not one of the values that want describes.
	read func(n *node) (any, error)
	// write returns a value that is not zero as JSON, or "" if JSON has no form
	// for it. Nil means jsonOf.
	write func(v any) string
	// negative is the meaning of all negative values, or "".
	negative string
	// apply returns a policy that is changed by a list of statuses. It is nil
	// for all other values, which are those of the field in Go.
	apply func(httpretry.Policy, []int) httpretry.Policy
	// schema returns the constraints of a JSON Schema.
	schema map[string]any
}

// json returns a value that is not zero as JSON, or "" if JSON has no form for
// it.
func (k kind) json(v any) string {
	if k.write == nil {
		return jsonOf(v)
	}
	return k.write(v)
}

// jsonOf returns v as JSON, or "" if it is a function.
func jsonOf(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return ""
	}
	return string(text)
}

// withNegative returns k, whose values are numbers, with a meaning of the
// negative ones.
func (k kind) withNegative(meaning string) kind {
	k.negative = meaning
	return k
}

// schema returns the JSON Schema of f.
func (f field) schema() map[string]any {
	s := maps.Clone(f.kind.schema)
	about := f.about
	if f.kind.negative != "" {
		about += " Negative means " + f.kind.negative + "."
	}
	s["description"] = about + " Default: " + f.zero + "."
	return s
}

// errUnwanted is returned for a value that kind.want does not describe.
var errUnwanted = errors.New("")

// A table has the fields of Policy or HostBudget that a file may have, in their
// order.
type table []field

// policyTable has the fields of Policy.
var policyTable = newPolicyTable()

// budgetTable has the fields of HostBudget.
var budgetTable = newBudgetTable()

func (t table) named(name string) (field, bool) {
	i := slices.IndexFunc(t, func(f field) bool { return f.name == name })
	if i < 0 {
		return field{}, false
	}
	return t[i], true
}

// forGo returns the field of a name in Go, and whether a file can have it.
func (t table) forGo(name string) (f field, ok bool) {
	i := slices.IndexFunc(t, func(f field) bool { return f.goAs == name && !f.isList() })
	if i < 0 {
		return field{name: name, goAs: name}, false
	}
	return t[i], true
}

// isList reports whether f is a list of statuses.
func (f field) isList() bool { return f.kind.apply != nil }

// listsFor returns the lists of statuses that change a field in Go.
func (t table) listsFor(name string) table {
	var lists table
	for _, f := range t {
		if f.isList() && f.goAs == name {
			lists = append(lists, f)
		}
	}
	return lists
}

func (t table) names() []string {
	var all []string
	for _, f := range t {
		all = append(all, f.name)
	}
	return all
}

func newPolicyTable() table {
	return table{
		{"maxAttempts", "MaxAttempts",
			integer(math.MinInt32, math.MaxInt32).withNegative("no limit"),
			strconv.Itoa(defaults.MaxAttempts),
			"The maximum number of attempts, the first included. 1 means no retries."},
		{"backoff", "Backoff", strategy(), defaultBackoff(),
			"The waits between attempts: a type of package strategies, with its fields. " +
				`"default" means the default.`},
		{"maxRetryAfter", "MaxRetryAfter", duration("-?").withNegative("no limit"),
			defaults.MaxRetryAfter.String(),
			"The longest wait that a server may ask for."},
		{"attemptTimeout", "AttemptTimeout", duration(""), "no timeout",
			"The longest time from the start of an attempt until its response headers, and what " +
				"readAhead reads, arrive."},
		{"readAhead", "ReadAhead", integer(0, maxSafe), "none",
			"The most bytes of a response's body that are read before it is returned, so that a " +
				"body that breaks off is retried. With attemptTimeout, one that stalls is, too."},
		{"maxElapsed", "MaxElapsed", duration(""), "no limit",
			"The longest time from the start of a request to the start of its last retry."},
		{"budget", "Budget", budget(), "one that all policies share",
			"The budget for failed retries. Equal objects are one budget, even if they are " +
				`inherited. "default" means the budget that all policies share that set none; ` +
				`"unlimited" means none.`},
		{"cooldown", "Cooldown", cooldown(), httpretry.CooldownSend.String(),
			"What a first attempt does while its host is cooling down."},
		{"transient", "Classify", statuses(outcome(httpretry.Transient)), "none",
			"The statuses of responses after which a request is retried if it is safe to send " +
				"twice." + aboutLists},
		{"final", "Classify", statuses(outcome(httpretry.Final)), "none",
			"The statuses of responses after which a request is not retried." + aboutLists},
		{"unprocessed", "Classify", statuses(outcome(httpretry.Unprocessed)), "none",
			"The statuses of responses that the server sends before it processes a request, so " +
				"that any request is retried." + aboutLists},
		{"idempotent", "Idempotent", idempotent(), "by method and key",
			"Whether all requests of this policy are safe to send twice. False means that " +
				"method and idempotency key decide."},
		{"newIdempotencyKey", "NewIdempotencyKey", newKey(), "none",
			"The idempotency keys of requests that are not idempotent without one."},
		{"idempotencyHeader", "IdempotencyHeader", text(), defaults.IdempotencyHeader,
			"The name of the header for the idempotency key."},
		{"replayBuffer", "ReplayBuffer", integer(-maxSafe, maxSafe).withNegative("none"),
			strconv.Itoa(defaults.ReplayBuffer),
			"The most bytes that are kept of a body, so that it can be sent again."},
		{"resume", "Resume", boolean(), "false",
			"Whether the rest of a response's body is requested if the body breaks off."},
		{"resumeIdle", "ResumeIdle", duration(""), "no limit",
			"How long a Read of a body that can be resumed waits for bytes. Only with resume."},
	}
}

// aboutLists is about the lists of statuses of a policy.
const aboutLists = " That includes statuses with another meaning otherwise, such as 404 and 503. " +
	"A policy has a status in one of its lists only."

// defaultBackoff returns the strategy of policies that have none.
func defaultBackoff() string {
	return fmt.Sprintf("DecorrelatedV2 Median=%v Max=%v "+
		"(Median=%v after a 429, and while the host fails)",
		defaults.Median, defaults.MaxWait, defaults.MedianPatient)
}

func newBudgetTable() table {
	return table{
		{"ratio", "Ratio", number(), fmt.Sprint(defaults.Ratio),
			"What failed retries may cost per success. A retry costs 1, or 2 after a timeout."},
		{"burst", "Burst", integer(math.MinInt32, 1e6).withNegative("none"),
			strconv.Itoa(defaults.Burst),
			"What failed retries may cost beyond the ratio."},
		{"window", "Window", duration(""), defaults.Window.String(),
			"How long successes and retries count, without the time in which the host fails."},
		{"strict", "Strict", boolean(), "false", "Whether retries that succeed are charged, too."},
	}
}

// maxSafe is the largest integer up to which float64, and so JSON in most
// programs, has all integers.
const maxSafe = 1 << 53

// integer is a kind of int and int64.
func integer(least, most int64) kind {
	return kind{
		want: fmt.Sprintf("a whole number from %d to %d", least, most),
		read: func(n *node) (any, error) {
			// JSON Schema counts 3.0 as an integer.
			whole, zeros, _ := strings.Cut(n.text, ".")
			x, err := strconv.ParseInt(whole, 10, 64)
			isWhole := n.kind == '0' && err == nil && strings.Trim(zeros, "0") == ""
			if !isWhole || x < least || x > most {
				return nil, errUnwanted
			}
			return x, nil
		},
		schema: map[string]any{"type": "integer", "minimum": least, "maximum": most},
	}
}

// status is the kind of the items of a list of statuses. Its bounds are those
// of package policies.
func status() kind { return integer(200, 999) }

// statuses is a kind of []int. reading.statuses reads it, because the other
// lists of the policy matter.
func statuses(apply func(httpretry.Policy, []int) httpretry.Policy) kind {
	return kind{
		want:  "an array of statuses from 200 to 999",
		apply: apply,
		schema: map[string]any{
			"type": "array", "items": status().schema, "uniqueItems": true,
		},
	}
}

// outcome returns the change by policies.Statuses.
func outcome(o httpretry.Outcome) func(httpretry.Policy, []int) httpretry.Policy {
	return func(p httpretry.Policy, statuses []int) httpretry.Policy {
		return policies.Statuses(p, o, statuses...)
	}
}

// number is a kind of float64.
func number() kind {
	return kind{
		want: "a number",
		read: func(n *node) (any, error) {
			x, err := strconv.ParseFloat(n.text, 64)
			digits, _, _ := strings.Cut(strings.ToLower(n.text), "e")
			// A number too small for a float64 is not zero.
			if n.kind != '0' || err != nil || x == 0 && strings.ContainsAny(digits, "123456789") {
				return nil, errUnwanted
			}
			return x, nil
		},
		// These are the bounds of HostBudget, where zero means the default.
		schema: map[string]any{"type": "number", "anyOf": []any{
			map[string]any{"const": 0}, map[string]any{"minimum": 1e-6, "maximum": 1e6},
		}},
	}
}

// duration is a kind of time.Duration. JSON Schema has the same regular
// expressions.
func duration(sign string) kind {
	pattern := "^" + sign + `(0|(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$`
	valid := regexp.MustCompile(pattern)
	return kind{
		want: `a duration as text with its unit, such as "500ms" or "2s"`,
		read: func(n *node) (any, error) {
			d, err := time.ParseDuration(n.text)
			// ParseDuration accepts any sign.
			if n.kind != '"' || err != nil || !valid.MatchString(n.text) {
				return nil, errUnwanted
			}
			return d, nil
		},
		write:  func(v any) string { return jsonOf(v.(time.Duration).String()) },
		schema: map[string]any{"type": "string", "pattern": pattern},
	}
}

func boolean() kind {
	return kind{
		want: "true or false",
		read: func(n *node) (any, error) {
			if n.kind != 't' {
				return nil, errUnwanted
			}
			return n.text == "true", nil
		},
		schema: map[string]any{"type": "boolean"},
	}
}

func text() kind {
	return kind{
		want: "text",
		read: func(n *node) (any, error) {
			if n.kind != '"' {
				return nil, errUnwanted
			}
			return n.text, nil
		},
		schema: map[string]any{"type": "string"},
	}
}

// choice is a kind with a name for each value. The first is that of the zero
// value.
func choice(names []string, value func(i int) any, write func(v any) string) kind {
	return kind{
		want: `"` + strings.Join(names, `" or "`) + `"`,
		read: func(n *node) (any, error) {
			i := slices.Index(names, n.text)
			if n.kind != '"' || i < 0 {
				return nil, errUnwanted
			}
			return value(i), nil
		},
		write:  write,
		schema: map[string]any{"enum": names},
	}
}

func cooldown() kind {
	var names []string
	for c := httpretry.CooldownSend; c <= httpretry.CooldownFail; c++ {
		names = append(names, c.String())
	}
	return choice(names,
		func(i int) any { return httpretry.Cooldown(i) },
		func(v any) string { return jsonOf(v.(httpretry.Cooldown).String()) })
}

func newKey() kind {
	type maker = func(*http.Request) string
	return choice([]string{"none", "random"},
		func(i int) any { return []maker{nil, httpretry.RandomKey}[i] },
		func(v any) string {
			if isFunc(v, httpretry.RandomKey) {
				return `"random"`
			}
			return ""
		})
}

// always is Policy.Idempotent of a policy with "idempotent": true.
func always(*http.Request) bool { return true }

func idempotent() kind {
	type judge = func(*http.Request) bool
	k := boolean()
	k.read = func(n *node) (any, error) {
		b, err := boolean().read(n)
		// False means the default, and not that no request is idempotent.
		if err != nil || !b.(bool) {
			return judge(nil), err
		}
		return always, nil
	}
	k.write = func(v any) string {
		if isFunc(v, always) {
			return "true"
		}
		return ""
	}
	return k
}

// isFunc reports whether v is the function f, which is declared at package
// level, so that its code identifies it.
func isFunc(v, f any) bool { return reflect.ValueOf(v).Pointer() == reflect.ValueOf(f).Pointer() }

func strategy() kind {
	return kind{
		want: `text with a strategy, such as "FullJitter Base=100ms Max=10s"`,
		read: func(n *node) (any, error) {
			switch {
			case n.kind != '"':
				return nil, errUnwanted
			case n.text == "default":
				return strategies.Strategy(nil), nil
			case utf8.RuneCountInString(n.text) > maxStrategy: // as JSON Schema counts
				return nil, fmt.Errorf("%s: want at most %d characters", quote(n.text), maxStrategy)
			}
			return strategies.Parse(n.text)
		},
		write: func(v any) string {
			text, err := strategies.Format(v.(strategies.Strategy))
			if err != nil { // a type of the program
				return ""
			}
			return jsonOf(text)
		},
		schema: map[string]any{"type": "string", "minLength": 1, "maxLength": maxStrategy,
			"examples": []string{"DecorrelatedV2 Median=1s", "FullJitter Base=100ms Max=10s"}},
	}
}

// maxStrategy is the length of the longest text of a strategy. The longest that
// strategies.Format writes has about 800 bytes.
const maxStrategy = 2048
