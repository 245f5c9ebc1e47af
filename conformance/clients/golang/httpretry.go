package main

import (
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// newHTTPRetry returns the first example of README.md, or a policy for requests
// that should outlast a restart of their server, to an API whose 429 means that
// nothing was done.
func newHTTPRetry(base *http.Transport, best bool) doer {
	cfg := httpretry.Config{Base: base}
	if best {
		base.ResponseHeaderTimeout = 2 * time.Second
		cfg.Policy = policies.Statuses(httpretry.Policy{
			MaxAttempts:  8,
			MaxElapsed:   12 * time.Second,
			Budget:       &httpretry.HostBudget{Burst: 100},
			ReplayBuffer: 1 << 20,
			Resume:       true,
			ResumeIdle:   2 * time.Second,
		}, httpretry.Unprocessed, http.StatusTooManyRequests)
	}
	transport, err := httpretry.New(cfg)
	if err != nil {
		panic(err)
	}
	return &http.Client{Transport: transport}
}
