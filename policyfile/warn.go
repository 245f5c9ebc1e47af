package policyfile

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/defaults"
)

// warnings returns the warnings about the file.
func (r *reading) warnings() []*Error {
	all := r.warned.errors(r.data)
	if more := r.warned.more; more > 0 {
		all = append(all, &Error{Line: 1, Column: 1,
			Problem: fmt.Sprintf("and %d more warnings", more)})
	}
	return all
}

// warn adds the warnings about p, the policy of the first source.
func (r *reading) warn(p httpretry.Policy, sources []source) {
	own := sources[0]
	// A policy that inherits all of the fields does not cause the warning.
	warn := func(text string, fields ...string) {
		if m := own.firstSet(fields); m != "" {
			r.warned.add(own.offsets[m], join(own.path, m, false), "%s", text)
		}
	}
	// A key with a method says which requests are idempotent.
	if isFunc(p.Idempotent, always) && !strings.ContainsAny(own.key, " \t") {
		warn("all requests may be sent twice, POST and PATCH included: "+
			"want true only if that is safe for each of them", "idempotent")
	}
	if p.MaxAttempts < 0 && p.MaxElapsed == 0 {
		others, only := "a deadline", "the budget"
		if _, ok := p.Budget.(httpretry.Unlimited); ok {
			others, only = "a budget", "a deadline"
		}
		warn(fmt.Sprintf("without maxAttempts, maxElapsed and %s, only %s ends a request that "+
			"never succeeds: want one of them", others, only),
			"maxElapsed", "maxAttempts", "budget")
	}
	if b, ok := p.Budget.(*httpretry.HostBudget); ok && b.Ratio > 1 {
		warn(fmt.Sprintf("a ratio of %v allows %v failed retries for each success: "+
			"want %v for %v %%", b.Ratio, b.Ratio, defaults.Ratio, 100*defaults.Ratio), "budget")
	}
	r.warnAboutFunctions(sources)
}

// warnAboutFunctions warns about functions of the preset of default that
// another policy inherits, because they are most likely about one API.
func (r *reading) warnAboutFunctions(sources []source) {
	own, base := sources[0], sources[len(sources)-1]
	if own.key == base.key {
		return
	}
	var names []string
	for _, goField := range reflect.VisibleFields(reflect.TypeFor[httpretry.Policy]()) {
		field, _ := policyTable.forGo(goField.Name)
		v, from := find(sources, field)
		if from.key == base.key && from.member == "preset" && field.describe(v) == "a function" {
			names = append(names, field.name)
		}
	}
	if names != nil {
		r.warned.add(own.offset, own.path, "inherits functions of the preset %s of default: "+
			"want them only if they are right for this key (%s)",
			base.preset, strings.Join(names, ", "))
	}
}

// firstSet returns the first of the fields that e has in the file, or "".
func (e entry) firstSet(fields []string) string {
	for _, name := range fields {
		if _, ok := e.own[name]; ok {
			return name
		}
	}
	return ""
}
