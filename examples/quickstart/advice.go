package main

import (
	"maps"
	"slices"

	"github.com/seed421102f4/httpretry"
)

// advice prints why requests that failed were not retried, and the fields of
// httpretry's Policy that decide it.
func (s *screen) advice(c *counters) {
	c.mu.Lock()
	defer c.mu.Unlock()
	printed := false
	for _, reason := range slices.Sorted(maps.Keys(c.failed)) {
		why, fields := explain(reason)
		if fields == "" {
			continue
		}
		if !printed {
			s.title("Why requests were not retried, and which fields to change")
			printed = true
		}
		s.print("  %s: %s\n      %s\n", reason, why, fields)
	}
}

// explain returns the meaning of a reason for a request that failed, and the
// fields to change, or "" if there are none.
func explain(reason httpretry.Reason) (why, fields string) {
	switch reason {
	case httpretry.ReasonPermanent:
		return "a retry would fail in the same way",
			"Policy.Classify, if that is not so"
	case httpretry.ReasonAttempts:
		return "every attempt failed",
			"Policy.MaxAttempts (-attempts)"
	case httpretry.ReasonNotIdempotent:
		return "the server may have processed the request",
			"Policy.NewIdempotencyKey, or Policy.Idempotent if it only reads"
	case httpretry.ReasonNotReplayable:
		return "the body cannot be sent again",
			"Policy.ReplayBuffer, or GetBody of the request"
	case httpretry.ReasonDoNotRetry:
		return "the server answered X-Should-Retry: false",
			"Policy.Classify, to ignore that"
	case httpretry.ReasonRetryAfter:
		return "the server asks for a longer wait than allowed",
			"Policy.MaxRetryAfter"
	case httpretry.ReasonDeadline:
		return "the wait would end after the deadline",
			"the deadline of the context, or Policy.MaxElapsed"
	case httpretry.ReasonBudget:
		return "too many retries of this client have failed",
			"Policy.Budget (-budget)"
	case httpretry.ReasonCooldown:
		return "the host asks for a longer wait than allowed",
			"Policy.Cooldown, or Policy.CooldownKey if it has several limits"
	case httpretry.ReasonNotResumable:
		return "the server did not send the rest of a body",
			"Policy.ResumeSame, if its validators change without the content"
	case httpretry.ReasonCallerRetries:
		return "the caller of this service retries",
			"the context, which is that of an inbound retry"
	}
	return "", "" // canceled: by Ctrl-C
}
