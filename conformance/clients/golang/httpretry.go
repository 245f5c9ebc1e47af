package main

import (
	"bytes"
	"net/http"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policies"
)

// newHTTPRetry returns the first example of README.md. At best, requests outlast
// a restart of their server, small bodies are read ahead, and the API is one
// whose 429 means that nothing was done, and which may answer an error in a 200.
func newHTTPRetry(base *http.Transport, best bool) doer {
	cfg := httpretry.Config{Base: base}
	if best {
		policy := httpretry.Policy{
			MaxAttempts:    8,
			MaxElapsed:     12 * time.Second,
			AttemptTimeout: 2 * time.Second,
			Budget:         &httpretry.HostBudget{Burst: 100},
			ReplayBuffer:   1 << 20,
			ReadAhead:      16 << 10,
			Resume:         true,
			ResumeIdle:     2 * time.Second,
		}
		byStatus := policy
		policy.Classify = func(
			req *http.Request, resp *http.Response, err error,
		) httpretry.Outcome {
			if err == nil && resp.StatusCode == http.StatusOK &&
				bytes.HasPrefix(httpretry.Peek(resp), []byte(`{"error"`)) {
				return httpretry.Transient
			}
			return byStatus.Outcome(req, resp, err)
		}
		cfg.Policy = policies.Statuses(
			policy, httpretry.Unprocessed, http.StatusTooManyRequests)
	}
	transport, err := httpretry.New(cfg)
	if err != nil {
		panic(err)
	}
	return &http.Client{Transport: transport}
}
