package redisbudget

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// getNth returns the host with a number from t.
func getNth(t *hosts, n int) *host {
	return t.get(strconv.Itoa(n), func(name string) string { return "key of " + name })
}

// requireBounded requires that t has at most maxHosts, each under its name.
func requireBounded(t *testing.T, table *hosts) {
	t.Helper()
	require.LessOrEqual(t, len(table.all), maxHosts)
	byName := 0
	for name, h := range table.byName.Range {
		byName++
		require.Equal(t, name, h.(*host).name)
		require.True(t, slices.Contains(table.all, h.(*host)))
	}
	require.Len(t, table.all, byName)
}

func TestHostsForgetTheLeastRecentlyUsed(t *testing.T) {
	var table hosts
	first := make([]*host, maxHosts)
	for i := range first {
		first[i] = getNth(&table, i)
		require.Equal(t, "key of "+strconv.Itoa(i), first[i].key)
	}
	for i := 0; i < maxHosts; i += 2 {
		require.Same(t, first[i], getNth(&table, i))
	}
	// The last odd one was used as lately as the even ones.
	for i := range maxHosts/2 - 1 {
		getNth(&table, maxHosts+i)
		require.Len(t, table.all, maxHosts)
	}
	requireBounded(t, &table)
	for i, h := range first[:maxHosts-1] {
		_, known := table.byName.Load(h.name)
		require.Equal(t, i%2 == 0, known, i)
	}
	assert.NotSame(t, first[1], getNth(&table, 1), "it begins again")
}

// A goroutine that was interrupted in get marks a use that is earlier than those
// of others.
func TestUsesDoNotGoBack(t *testing.T) {
	var h host
	h.markUsed(7)
	h.markUsed(3)
	assert.EqualValues(t, 7, h.used.Load())
	h.markUsed(8)
	assert.EqualValues(t, 8, h.used.Load())
}

// A host that requests keep using has one state, however many others come.
func TestHostsKeepTheOneInUse(t *testing.T) {
	var table hosts
	kept := getNth(&table, -1)
	for i := range 2 * maxHosts {
		getNth(&table, i)
		require.Same(t, kept, getNth(&table, -1))
	}
}

func TestHostsAreConcurrent(t *testing.T) {
	var table hosts
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range 2 * maxHosts {
				assert.Equal(t, strconv.Itoa(i), getNth(&table, i).name)
			}
		})
	}
	wg.Wait()
	requireBounded(t, &table)
}

// Names of any length take at most maxNameLen bytes of memory.
func TestNamesAreBounded(t *testing.T) {
	var b Budget
	url := "https://" + strings.Repeat("x", 2*maxNameLen)
	longest := b.host(url[:maxNameLen])
	assert.Len(t, longest.name, maxNameLen)
	assert.NotSame(t, unsafe.StringData(url), unsafe.StringData(longest.name), "the whole URL is in memory")
	longer := b.host(url[:maxNameLen+1])
	assert.LessOrEqual(t, len(longer.name), maxNameLen)
	assert.Same(t, longer, b.host(url[:maxNameLen+1]))
	assert.NotSame(t, longer, b.host(url), "long names have states of their own")
}
