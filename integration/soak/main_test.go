package main

import (
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A short run meets all situations. CI has a longer one, which judges growth.
func TestSoak(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil && os.Getenv("CI") == "" {
		t.Skip("redis-server is not installed: run redisbudget/install.sh")
	}
	var out strings.Builder
	s := &soak{duration: 20 * time.Second, clients: 64, seed: rand.Uint64N(1e9)}
	err := s.run(&out)
	t.Log(out.String())
	require.NoError(t, err)
}
