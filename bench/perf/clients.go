package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

const (
	attempts = 3

	ours  = "httpretry"
	naive = "naive loop"
)

// contenders returns the peers and one more, httpretry with all that a policy
// can have without copying the request.
func contenders() []peers.Peer {
	all := peers.All()
	full := peers.Peer{
		Name:         ours + ", observer and host policies",
		Module:       all[0].Module,
		RoundTripper: fullTransport,
		New:          func(o peers.Options) peers.Client { return &http.Client{Transport: fullTransport(o)} },
	}
	return append([]peers.Peer{all[0], full}, all[1:]...)
}

func fullTransport(o peers.Options) http.RoundTripper {
	policy := httpretry.Policy{
		MaxAttempts: o.Attempts,
		Backoff:     peers.Constant(o.Wait),
		MaxElapsed:  time.Minute,
		Budget:      &httpretry.HostBudget{Ratio: 0.2},
	}
	if o.NoBudget {
		policy.Budget = httpretry.Unlimited{}
	}
	t, err := httpretry.New(httpretry.Config{
		Base:    o.Base,
		Observe: func(context.Context, httpretry.Event) {},
		Policy:  policy,
		Policies: map[string]httpretry.Policy{
			"api.example.com":      policy,
			"*.example.com":        {MaxAttempts: 4},
			"*.cdn.example.com":    {MaxAttempts: 2},
			"other.example.com:81": {MaxAttempts: 1},
		},
	})
	if err != nil {
		panic(err) // these settings are valid
	}
	return t
}

// stream is a request body of a type that net/http does not know. It costs
// nothing to read unless it has content, so that a ratio shows only what is
// added.
type stream struct {
	size, left int64
	content    []byte
	open       atomic.Int64
}

func (s *stream) rewind() io.ReadCloser {
	s.left = s.size
	s.open.Add(1)
	return s
}

func (s *stream) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	n := min(int64(len(p)), s.left)
	if s.content != nil {
		copy(p, s.content[s.size-s.left:][:n])
	}
	s.left -= n
	return int(n), nil
}

func (s *stream) Close() error {
	s.open.Add(-1)
	return nil
}

func prefix(with string, problems []string) []string {
	var prefixed []string
	for _, p := range problems {
		prefixed = append(prefixed, with+p)
	}
	return prefixed
}

// share returns the percentage of n in total, or "" if it is all.
func share(n, total int) string {
	if n == total {
		return ""
	}
	return fmt.Sprintf("%.2g %%: ", 100*float64(n)/float64(total))
}
