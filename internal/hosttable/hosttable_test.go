package hosttable_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/internal/hosttable"
)

// A hostValue is a value that contains its host.
type hostValue struct{ host string }

// get calls Get with an init function that stores host in the value.
func get(table *hosttable.Table[hostValue], host string) *hostValue {
	return table.Get(host, func(v *hostValue) { v.host = host })
}

func nthHost(i int) string { return fmt.Sprintf("host-%d.example.com", i) }

// hostsOf returns the hosts that table holds, in order.
func hostsOf[T any](table *hosttable.Table[T]) []string {
	return slices.Sorted(maps.Keys(maps.Collect(table.All())))
}

// fullTable returns a table with the first MaxEntries hosts, in their order.
func fullTable() *hosttable.Table[hostValue] {
	table := new(hosttable.Table[hostValue])
	for i := range hosttable.MaxEntries {
		get(table, nthHost(i))
	}
	return table
}

func TestOneValuePerHost(t *testing.T) {
	var table hosttable.Table[hostValue]
	assert.Nil(t, table.Peek("a"), "empty")
	a := get(&table, "a")
	assert.Equal(t, "a", a.host)
	assert.Same(t, a, table.Get("a", func(*hostValue) { t.Error("initialized twice") }))
	assert.Same(t, a, table.Peek("a"))
	assert.Nil(t, table.Peek("b"))
	assert.Nil(t, table.Peek(""))
	assert.NotSame(t, a, get(&table, "A"), "hosts are compared byte by byte")
	assert.NotSame(t, a, get(&table, ""))
	zero := table.Get("zero", nil)
	assert.Zero(t, *zero)
	assert.Same(t, zero, table.Get("zero", nil))
}

func TestEqualHashes(t *testing.T) {
	var table hosttable.Table[hostValue]
	a := get(&table, "a")
	hash, ok := table.HashOf("a")
	require.True(t, ok)
	assert.Same(t, a, table.FindHash("a", hash))
	assert.Nil(t, table.FindHash("b", hash), "another host")
	assert.Nil(t, table.FindHash("a", hash+hosttable.MaxEntries), "same bucket, another hash")
}

// The model is the number of the last addition before each host's last use.
// Hosts with the same number may be evicted in any order.
func TestEvictsTheLeastRecentlyUsed(t *testing.T) {
	table := fullTable()
	lastUsed := map[string]int{}
	for i := range hosttable.MaxEntries {
		lastUsed[nthHost(i)] = i
	}
	r := rand.New(rand.NewPCG(8, 9))
	for i := hosttable.MaxEntries; i < 3*hosttable.MaxEntries; i++ {
		// Get would add a host that was evicted.
		host := nthHost(r.IntN(i))
		if _, ok := lastUsed[host]; ok {
			get(table, host)
			lastUsed[host] = i - 1
		}
		table.Peek(nthHost(r.IntN(i))) // does not count

		oldest := slices.Min(slices.Collect(maps.Values(lastUsed)))
		lastUsed[nthHost(i)] = i
		get(table, nthHost(i))
		var evicted []string
		for host, used := range lastUsed {
			if used == oldest && table.Peek(host) == nil {
				evicted = append(evicted, host)
			}
		}
		require.Len(t, evicted, 1)
		delete(lastUsed, evicted[0])
	}
	assert.ElementsMatch(t, slices.Collect(maps.Keys(lastUsed)), hostsOf(table))
}

// An Entry that is kept replaces a lookup until its host is evicted. Then the
// value remains valid, and the host gets a new one.
func TestEntry(t *testing.T) {
	var table hosttable.Table[hostValue]
	kept := table.Entry("kept", func(v *hostValue) { v.host = "kept" })
	other := table.Entry("other", func(v *hostValue) { v.host = "other" })
	assert.Same(t, kept, table.Entry("kept", nil))
	for i := range 2 * hosttable.MaxEntries {
		get(&table, nthHost(i))
		require.True(t, kept.Use(), "used between additions")
	}
	assert.Same(t, &kept.Value, table.Peek("kept"))
	assert.False(t, other.Use(), "evicted")
	assert.Nil(t, table.Peek("other"), "Use does not add a host")
	assert.NotSame(t, other, table.Entry("other", nil))
	assert.False(t, other.Use())
	assert.Equal(t, "other", other.Value.host)
}

func TestKeepsNoURLInMemory(t *testing.T) {
	var table hosttable.Table[hostValue]
	url := "https://api.example.com/" + strings.Repeat("x", 1000)
	host := url[8:23]
	get(&table, host)
	hosts := hostsOf(&table)
	require.Equal(t, []string{host}, hosts)
	assert.NotSame(t, unsafe.StringData(host), unsafe.StringData(hosts[0]))
}

func TestLongHostsShareOneEntry(t *testing.T) {
	var table hosttable.Table[hostValue]
	longest := strings.Repeat("a", hosttable.MaxNameLen)
	other := "b" + longest[1:]
	assert.NotSame(t, get(&table, longest), get(&table, other))
	assert.Nil(t, table.Peek(longest+"a"))
	shared := get(&table, longest+"a")
	assert.Same(t, shared, get(&table, other+"a"))
	assert.Same(t, shared, table.Peek(strings.Repeat("c", 60_000)))
	assert.ElementsMatch(t, []string{longest, other, hosttable.SharedName}, hostsOf(&table))
	assert.LessOrEqual(t, len(hosttable.SharedName), hosttable.MaxNameLen)
}

func TestFloodOfHostsKeepsMemoryBounded(t *testing.T) {
	for _, test := range []struct{ hosts, length int }{
		{100_000, 60_000},
		{4 * hosttable.MaxEntries, hosttable.MaxNameLen},
	} {
		t.Run(strconv.Itoa(test.length), func(t *testing.T) {
			// Each substring of this length is another name.
			var numbers strings.Builder
			for i := 0; numbers.Len() < test.hosts+test.length; i++ {
				fmt.Fprintf(&numbers, "%06d.", i)
			}
			var table hosttable.Table[int]
			before := contract.HeapInUse()
			for i := range test.hosts {
				*table.Get(numbers.String()[i:i+test.length], nil) = i
			}
			assert.Less(t, contract.HeapInUse()-before, int64(1<<20))

			var size int
			for _, host := range hostsOf(&table) {
				size += len(host)
			}
			assert.Positive(t, size)
			assert.LessOrEqual(t, size, hosttable.MaxEntries*hosttable.MaxNameLen)
		})
	}
}

func TestPanicInInitChangesNothing(t *testing.T) {
	for _, table := range []*hosttable.Table[hostValue]{fullTable(), {}} {
		before := hostsOf(table)
		assert.Panics(t, func() { table.Get("bad", func(*hostValue) { panic("no") }) })
		assert.Nil(t, table.Peek("bad"))
		assert.Equal(t, before, hostsOf(table), "no host was evicted")
		assert.Equal(t, "bad", get(table, "bad").host, "the lock is free")
	}
}

// Goroutines that wait while one of them adds a host get the same value.
func TestConcurrentGetOfOneHost(t *testing.T) {
	var table hosttable.Table[hostValue]
	const goroutines = 8
	var begun, initialized atomic.Int32
	init := func(*hostValue) {
		initialized.Add(1)
		for range 1000 { // until most of the others have looked the host up
			runtime.Gosched()
		}
		for begun.Load() < goroutines {
			runtime.Gosched()
		}
	}
	var values [goroutines]*hostValue
	var wg sync.WaitGroup
	for i := range values {
		wg.Go(func() { begun.Add(1); values[i] = table.Get("a", init) })
	}
	wg.Wait()
	assert.EqualValues(t, 1, initialized.Load())
	for _, v := range values {
		assert.Same(t, values[0], v)
	}
}

func TestConcurrentEviction(t *testing.T) {
	var table hosttable.Table[hostValue]
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 7))
			for range 1000 {
				i := r.IntN(2 * hosttable.MaxEntries)
				assert.Equal(t, nthHost(i), get(&table, nthHost(i)).host)
				if v := table.Peek(nthHost(i + 1)); v != nil {
					assert.Equal(t, nthHost(i+1), v.host)
				}
			}
		})
	}
	wg.Wait()
	hosts := hostsOf(&table)
	assert.Len(t, hosts, hosttable.MaxEntries)
	assert.Equal(t, hosttable.MaxEntries, table.Size())
	for _, host := range hosts {
		require.Equal(t, host, table.Peek(host).host)
	}
}

func TestLookupsDoNotAllocate(t *testing.T) {
	var table hosttable.Table[hostValue]
	init := func(*hostValue) {}
	long := strings.Repeat("a", 2*hosttable.MaxNameLen)
	table.Get("a", init)
	table.Get(long, init)
	for _, host := range []string{"a", long} {
		assert.Zero(t, testing.AllocsPerRun(1000, func() { table.Get(host, init) }))
		assert.Zero(t, testing.AllocsPerRun(1000, func() { table.Peek(host) }))
	}
	assert.Zero(t, testing.AllocsPerRun(1000, func() { table.Peek("b") }))
}
