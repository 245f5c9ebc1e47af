package httpretry

import (
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/internal/defaults"
	"github.com/seed421102f4/httpretry/strategies"
)

// KnownText returns the number of the entry of errorTexts that decides what
// err is, or -1, and how many there are.
func KnownText(err error) (entry, entries int) {
	texts := errorTexts()
	for i, e := range texts {
		if e.matches(err.Error()) {
			return i, len(texts)
		}
	}
	return -1, len(texts)
}

// IsPlain reports whether requests that follow p may be plain.
func IsPlain(p Policy) bool { return p.withDefaults().plainAllowed }

// AsGiven returns p as a user writes it, if it is the argument of a function of
// WithPolicyFunc.
func AsGiven(p Policy) Policy {
	p.isArgument = false
	return p
}

// The transport uses the values of internal/defaults, which policyfile shows.
// All other fields of a zero Policy remain zero.
func TestZeroFieldsMeanTheDefaults(t *testing.T) {
	p := Policy{}.withDefaults()
	want := map[string]any{
		"MaxAttempts":   defaults.MaxAttempts,
		"MaxRetryAfter": defaults.MaxRetryAfter,
		"Backoff": strategies.DecorrelatedV2{
			Median: defaults.Median, Max: defaults.MaxWait},
		"IdempotencyHeader": defaults.IdempotencyHeader,
		"ReplayBuffer":      int64(defaults.ReplayBuffer),
	}
	got := reflect.ValueOf(p.Policy)
	for _, field := range reflect.VisibleFields(got.Type()) {
		if v := got.FieldByIndex(field.Index); want[field.Name] == nil {
			assert.True(t, v.IsZero(), "Policy.%s: %v", field.Name, v)
		} else {
			assert.Equal(t, want[field.Name], v.Interface(), "Policy.%s", field.Name)
		}
	}
	patient := strategies.DecorrelatedV2{Median: defaults.MedianPatient, Max: defaults.MaxWait}
	assert.Equal(t, patient, p.patient, "Policy.Backoff after a 429, and while the host fails")

	ratio, burst, window := new(HostBudget).settings()
	assert.InDelta(t, defaults.Ratio, ratio, 0, "HostBudget.Ratio")
	assert.Equal(t, defaults.Burst, burst, "HostBudget.Burst")
	assert.Equal(t, defaults.Window, window, "HostBudget.Window")
}
