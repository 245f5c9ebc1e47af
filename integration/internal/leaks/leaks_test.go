package leaks

import (
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestBodies(t *testing.T) { synctest.Test(t, testBodies) }

func testBodies(t *testing.T) {
	var b Bodies
	assert.ErrorContains(t, b.Check(), "0 request bodies")
	first := b.New(strings.NewReader("content"))
	content, err := io.ReadAll(first)
	require.NoError(t, err)
	assert.Equal(t, "content", string(content))
	require.NoError(t, first.Close())
	require.NoError(t, b.Check())

	second := b.New(strings.NewReader(""))
	assert.ErrorContains(t, b.Check(), "2 request bodies: 1 were closed, and there were 0 more")
	require.NoError(t, second.Close())
	require.NoError(t, b.Check())
	require.NoError(t, second.Close())
	assert.ErrorContains(t, b.Check(), "2 were closed, and there were 1 more")
}

func TestAwaitNone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		before := Now()
		assert.Positive(t, before.Goroutines)
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() { <-stop; close(stopped) }()
		// A goroutine of another test may end at any time, so before may count
		// more than this test has.
		for _, fewer := range []Held{{0, before.Descriptors}, {before.Goroutines + 1, 0}} {
			_, err := AwaitNone(fewer, func() {})
			assert.ErrorContains(t, err, "TestAwaitNone")
		}
		now, err := AwaitNone(before, sync.OnceFunc(func() { close(stop); <-stopped }))
		require.NoError(t, err)
		assert.LessOrEqual(t, now.Goroutines, before.Goroutines)
	})
}
