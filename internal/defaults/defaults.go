// Package defaults has the values that zero fields of httpretry.Policy and
// httpretry.HostBudget mean. The transport follows them. Package policyfile and
// its schema show them.
package defaults

import "time"

// The fields of Policy.
const (
	MaxAttempts       = 3
	MaxRetryAfter     = 60 * time.Second
	IdempotencyHeader = "Idempotency-Key"
	ReplayBuffer      = 64 << 10

	// Backoff is DecorrelatedV2 with these.
	Median        = 500 * time.Millisecond
	MedianPatient = 1500 * time.Millisecond // after a 429, and while the host fails
	MaxWait       = 30 * time.Second
)

// The fields of HostBudget.
const (
	Ratio  = 0.2
	Burst  = 5
	Window = 30 * time.Second
)
