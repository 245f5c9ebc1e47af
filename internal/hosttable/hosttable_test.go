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

	"github.com/seed421102f4/httpretry/internal/hosttable"
)

// A hostValue is a value that contains its host.
type hostValue struct{ host string }

// get calls Get with an init function that stores host in the value.
func get(table *hosttable.Table[hostValue], host string) *hostValue {
	return table.Get(host, func(v *hostValue) { v.host = host })
}

func nthHost(i int) string { return fmt.Sprintf("host-%d.example.com", i) }

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

func TestFullTableFindsEachHost(t *testing.T) {
	table := fullTable()
	require.Len(t, table.Hosts(), hosttable.MaxEntries)
	for i := range hosttable.MaxEntries {
		require.Equal(t, nthHost(i), table.Peek(nthHost(i)).host)
	}
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
	assert.ElementsMatch(t, slices.Collect(maps.Keys(lastUsed)), table.Hosts())
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
	hosts := table.Hosts()
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
	assert.ElementsMatch(t, []string{longest, other, hosttable.SharedName}, table.Hosts())
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
			before := heapInUse()
			for i := range test.hosts {
				*table.Get(numbers.String()[i:i+test.length], nil) = i
			}
			after := heapInUse()
			assert.Less(t, int64(after)-int64(before), int64(1<<20))

			var size int
			for _, host := range table.Hosts() {
				size += len(host)
			}
			assert.Positive(t, size)
			assert.LessOrEqual(t, size, hosttable.MaxEntries*hosttable.MaxNameLen)
		})
	}
}

// heapInUse returns the bytes of live objects.
func heapInUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func TestPanicInInitChangesNothing(t *testing.T) {
	table := fullTable()
	before := table.Hosts()
	assert.Panics(t, func() { table.Get("bad", func(*hostValue) { panic("no") }) })
	assert.Nil(t, table.Peek("bad"))
	assert.Equal(t, before, table.Hosts(), "no host was evicted")
	assert.Equal(t, "bad", get(table, "bad").host, "the lock is free")

	var empty hosttable.Table[hostValue]
	assert.Panics(t, func() { empty.Get("bad", func(*hostValue) { panic("no") }) })
	assert.Nil(t, empty.Peek("bad"))
	assert.Equal(t, "bad", get(&empty, "bad").host)
}

func TestConcurrentGetInitializesOnce(t *testing.T) {
	var table hosttable.Table[hostValue]
	var initialized atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, i := range rand.Perm(hosttable.MaxEntries) {
				v := table.Get(nthHost(i), func(v *hostValue) {
					initialized.Add(1)
					v.host = nthHost(i)
				})
				assert.Equal(t, nthHost(i), v.host)
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, hosttable.MaxEntries, initialized.Load())
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
	hosts := table.Hosts()
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
	assert.Zero(t, testing.AllocsPerRun(1000, func() { table.Get("a", init) }))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { table.Get(long, init) }))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { table.Peek("a") }))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { table.Peek("b") }))
}

func BenchmarkTable(b *testing.B) {
	b.Run("find", func(b *testing.B) {
		var table hosttable.Table[hostValue]
		b.ReportAllocs()
		for b.Loop() {
			table.Get("api.example.com", nil)
		}
	})
	b.Run("find in parallel", func(b *testing.B) {
		var table hosttable.Table[hostValue]
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				table.Get("api.example.com", nil)
			}
		})
	})
	b.Run("add", func(b *testing.B) {
		var table hosttable.Table[hostValue]
		names := make([]string, 20*hosttable.MaxEntries)
		for i := range names {
			names[i] = nthHost(i)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			table.Get(names[i%len(names)], nil)
		}
	})
}
