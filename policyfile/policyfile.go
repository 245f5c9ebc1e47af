// Package policyfile reads the policies of a process from JSON, so that they
// can be changed without a build:
//
//	{
//	  "default": {"maxAttempts": 4, "attemptTimeout": "2s"},
//	  "policies": {
//	    "api.stripe.com": {"preset": "stripe", "attemptTimeout": "10s"},
//	    "*.example.com": {
//	      "backoff": "FullJitter Base=50ms Max=2s",
//	      "budget": {"burst": 1}
//	    }
//	  }
//	}
//
// The keys of policies are those of [httpretry.Config.Policies], of which at
// most 1,000 with a path may be for one host. The default is for all other
// requests. The file schema.json in this folder is a JSON Schema,
// with all fields. A file may name it in a field $schema. A field version is
// the version of the format, which is 1. Without the field, it is 1, too.
//
// # Fields
//
// Fields have the names of [httpretry.Policy] and [httpretry.HostBudget], with
// a small first letter. Durations are text with a unit ("500ms"), strategies
// are text for [strategies.Parse]. Some fields differ from those in Go:
//
//	"backoff": "default"           nil, the default of httpretry
//	"budget": {"burst": 1}         a HostBudget, which may have a name
//	"budget": "unlimited"          httpretry.Unlimited
//	"budget": "default"            nil, the budget of policies without one
//	"cooldown": "wait"             CooldownWait, or "send" or "fail"
//	"transient": [404]             policies.Statuses(p, httpretry.Transient, 404)
//	"final": [500, 503]            policies.Statuses(p, httpretry.Final, 500, 503)
//	"unprocessed": [429]           policies.Statuses(p, httpretry.Unprocessed, 429)
//	"idempotent": true             all requests are idempotent
//	"idempotent": false            nil, the default of httpretry
//	"newIdempotencyKey": "random"  httpretry.RandomKey
//	"newIdempotencyKey": "none"    nil
//
// A field that is missing in a policy has the value that the policy's preset
// sets. If the preset does not set it, the field has the value in default, or
// else the default of httpretry. A field that is present with its zero value,
// such as "attemptTimeout": "0s", has the default of httpretry. A budget is
// inherited as a whole. A field that is missing in a budget has the default of
// HostBudget. A policy with "resume": false inherits no resumeIdle.
//
// # Lists of statuses
//
// The fields transient, final and unprocessed change the meaning that statuses
// have by the Classify of the preset or, without one, by that of httpretry. A
// host that answers with a final status counts as working, in its budget and in
// [httpretry.RetryTransport.Origins]. The lists of one policy must not have a
// status in common. An empty list replaces that of default.
//
// A policy inherits each list from default as a whole, as it inherits other
// fields, with two exceptions:
//
//   - A status in a list of the policy is not in the lists that it inherits.
//   - A policy with a preset inherits no list, because the preset determines
//     the meaning of all statuses.
//
// # Presets
//
// A preset is a policy with a name. These presets are functions of package
// policies: anthropic, aws, background, github, openai, slack and stripe. The
// preset background has no limit of time, so set maxElapsed with it. A program
// adds presets of its own in [Loader.Presets], for functions such as Classify
// and CooldownKey, which a file cannot contain.
//
// # Budgets
//
// Budgets with the same fields and the same name are one HostBudget in all
// files that one Loader reads. So a change of the file does not fill the budget
// again, unless it changes the budget. Two budgets of one file that have the
// same name must be equal.
//
// # Errors
//
// Parse reports all problems at once, in the order of their positions, and then
// returns no File. Unknown fields, repeated fields and null are problems. A
// text that is not JSON is one problem. The schema finds the same problems,
// except for these:
//
//   - the size of the file, repeated fields, and keys that are not valid or too
//     many for a host
//   - a status in two lists of a policy
//   - unknown presets
//   - texts that are not strategies
//   - durations and names of headers that httpretry does not allow
//   - a resumeIdle of a policy that does not resume, be it that of default
//   - whole numbers with an exponent
//   - different budgets with the same name
//
// # Old programs and new files
//
// A field that is added to the format in a later release is an unknown field
// for a program of an earlier one. If such programs share a file, set
// [Loader.IgnoreUnknown] in them, or add the field to the file after the last
// program has been updated. The version changes only if the meaning of a field
// does. For a later version, Parse returns one error, whatever else the file
// has.
package policyfile

import (
	"fmt"
	"maps"
	"reflect"
	"sync"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// MaxSize is the size of the largest file that Parse reads.
const MaxSize = 1 << 20

// A Loader reads the files of a process. Its zero value is ready to use. It may
// be used concurrently, and must not be copied after first use.
type Loader struct {
	// Presets are the policies that the field preset can name, in addition to
	// those of package policies. They replace those with the same name. It must
	// not be changed after first use.
	Presets map[string]httpretry.Policy

	// IgnoreUnknown makes a field that this release does not know a warning,
	// instead of an error. Such a field is ignored with its value, and
	// [File.Warnings] returns it. A misspelled field is ignored, too.
	//
	// Only the names of fields can be unknown: those of a file, of a policy and
	// of a budget. These remain errors, since without them a policy would not
	// be that of the file: an unknown preset or strategy, another text such as
	// "cooldown": "never", a value of the wrong type, a repeated field, a key
	// of policies that is not valid, and a later version.
	//
	// It must not be changed after first use.
	IgnoreUnknown bool

	mu      sync.Mutex
	budgets budgets
}

// presets returns all presets by their names.
func (l *Loader) presets() map[string]httpretry.Policy {
	all := map[string]httpretry.Policy{
		"anthropic":  policies.Anthropic(),
		"aws":        policies.AWS(),
		"background": policies.Background(0),
		"github":     policies.GitHub(),
		"openai":     policies.OpenAI(),
		"slack":      policies.Slack(),
		"stripe":     policies.Stripe(),
	}
	maps.Copy(all, l.Presets)
	return all
}

// Parse is the Parse method of a new [Loader], so each call makes new budgets.
func Parse(data []byte) (*File, error) { return new(Loader).Parse(data) }

// Parse reads the contents of a file. If it returns an error, that wraps an
// [Error] for each problem, with one line each, or the first 100 of them.
func (l *Loader) Parse(data []byte) (*File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.budgets == nil {
		l.budgets = budgets{}
	}
	if len(data) > MaxSize {
		return nil, &Error{Line: 1, Column: 1,
			Problem: fmt.Sprintf("%d bytes: want at most %d", len(data), MaxSize)}
	}
	r := newReading(l, data)
	f := r.file()
	if err := r.error(); err != nil {
		return nil, err
	}
	f.warnings = r.warnings()
	// A file that is not valid changes no budget.
	l.budgets.keep(r.budgets)
	return f, nil
}

// Error is a problem of a file, or a warning.
type Error struct {
	Line, Column int    // from 1; Column counts characters
	Path         string // of the value, such as `default.maxElapsed`; "" for the file
	Problem      string // with the value and the allowed values

	_ struct{} // precludes unkeyed literals, because fields may be added
}

// Error returns the position, the path and the problem, such as
//
//	3:33: policies["a.test"].resume: "yes": want true or false
func (e *Error) Error() string {
	if e.Path == "" {
		return fmt.Sprintf("%d:%d: %s", e.Line, e.Column, e.Problem)
	}
	return fmt.Sprintf("%d:%d: %s: %s", e.Line, e.Column, e.Path, e.Problem)
}

// A File has the policies of a file. It does not change.
type File struct {
	base     entry
	entries  map[string]entry // by key
	policy   httpretry.Policy
	policies map[string]httpretry.Policy
	warnings []*Error
}

// Policy returns the policy that is the default, for [httpretry.Config.Policy].
func (f *File) Policy() httpretry.Policy { return f.policy }

// Policies returns the policies by their keys, complete with the fields that
// they inherit, for [httpretry.Config.Policies]. The map is the caller's.
func (f *File) Policies() map[string]httpretry.Policy { return maps.Clone(f.policies) }

// Warnings returns likely mistakes of a file that is valid, in the order of
// their positions, or nil if there are none:
//
//   - fields that Parse has ignored because of [Loader.IgnoreUnknown]
//   - policies in which all requests are idempotent, unless their key has a
//     method
//   - policies that set maxElapsed, maxAttempts or budget so that only the budget
//     or only a deadline ends a request that never succeeds
//   - budgets with a ratio above 1
//   - functions that a policy inherits from the preset of default
//
// After 100 of them, a last one says how many more there are. A warning about a
// value is where the file sets it, and not at each policy that inherits it. The
// slice and its elements are the caller's.
func (f *File) Warnings() []*Error {
	var all []*Error
	for _, w := range f.warnings {
		all = append(all, new(*w))
	}
	return all
}

// An entry is one policy as it is in a file.
type entry struct {
	preset       string // "": none
	presetPolicy httpretry.Policy
	own          map[string]any // by the names of fields

	offset  int            // of the policy in the file
	offsets map[string]int // of the values of its fields, by their names
}

// policy returns the policy of e, which inherits from base, without lists of
// statuses.
func (e entry) policy(base httpretry.Policy) httpretry.Policy {
	p := base
	target, preset := reflect.ValueOf(&p).Elem(), reflect.ValueOf(e.presetPolicy)
	// A preset is a Policy, so its zero fields are those that it does not set.
	for f, field := range target.Fields() {
		if value := preset.FieldByIndex(f.Index); f.IsExported() && !value.IsZero() {
			field.Set(value)
		}
	}
	// The fields of the file come last. A zero value in the file counts, too.
	for _, f := range policyTable {
		if v, ok := e.own[f.name]; ok && !f.isList() {
			setField(target, f.goAs, v)
		}
	}
	return p
}
