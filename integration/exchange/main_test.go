package main

import (
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A short run meets all situations. CI has a longer one, which judges growth.
func TestExchanges(t *testing.T) {
	var out strings.Builder
	s := &exchanges{duration: 10 * time.Second, clients: 8, seed: rand.Uint64N(1e9)}
	err := s.run(&out)
	t.Log(out.String())
	require.NoError(t, err)
}
