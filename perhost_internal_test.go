package httpretry

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A hostValue is a value that knows its host.
type hostValue struct{ host string }

// valueOf returns p.get(host), which it makes a hostValue of.
func valueOf(p *perHost[hostValue], host string) *hostValue {
	return p.get(host, func(n *hostValue) { n.host = host })
}

func nthHost(i int) string { return fmt.Sprintf("host-%d.example.com", i) }

// hostsOf returns the hosts of p, found by walking all of it.
func hostsOf(p *perHost[hostValue]) map[string]bool {
	found := map[string]bool{}
	for i := range p.table.Load().slots {
		for e := p.table.Load().slots[i].Load(); e != nil; e = e.next.Load() {
			found[e.host] = true
		}
	}
	return found
}

func TestPerHostKeepsOneValueForEachHost(t *testing.T) {
	var p perHost[hostValue]
	assert.Nil(t, p.peek("a"), "empty")
	a := valueOf(&p, "a")
	assert.Equal(t, "a", a.host)
	assert.Same(t, a, p.get("a", func(*hostValue) { t.Error("opened twice") }))
	assert.Same(t, a, p.peek("a"))
	assert.Nil(t, p.peek("b"))
	assert.Nil(t, p.peek(""))
	assert.NotSame(t, a, valueOf(&p, "A"), "hosts are taken as they are")
	assert.NotSame(t, a, valueOf(&p, ""))
}

func TestPerHostTellsHostsOfEqualHashApart(t *testing.T) {
	var p perHost[hostValue]
	valueOf(&p, "a")
	table := p.table.Load()
	for i := range table.slots {
		if e := table.slots[i].Load(); e != nil {
			assert.Same(t, e, table.find("a", e.hash))
			assert.Nil(t, table.find("b", e.hash))
			assert.Nil(t, table.find("a", e.hash+maxHosts), "same slot, other hash")
		}
	}
}

func TestPerHostFindsAllOfAFullTable(t *testing.T) {
	var p perHost[hostValue]
	for i := range maxHosts {
		valueOf(&p, nthHost(i))
	}
	require.Len(t, hostsOf(&p), maxHosts)
	for i := range maxHosts {
		require.Equal(t, nthHost(i), p.peek(nthHost(i)).host)
	}
}

// Against the plainest model, a list in order of use. A turn passes after each use, so that the order is strict.
func TestPerHostEvictsInOrderOfUse(t *testing.T) {
	var p perHost[hostValue]
	var order []string
	for i := range maxHosts {
		valueOf(&p, nthHost(i))
		order = append(order, nthHost(i))
	}
	r := rand.New(rand.NewPCG(8, 9))
	for i := range 3 * maxHosts {
		if at := r.IntN(maxHosts); i%2 == 0 { // use one, then add one
			host := order[at]
			order = append(slices.Delete(order, at, at+1), host)
			valueOf(&p, host)
			p.peek(order[0]) // no use
		}
		added := fmt.Sprintf("new-%d.example.com", i)
		order = append(order[1:], added)
		valueOf(&p, added)
		require.Equal(t, added, p.peek(added).host)
	}
	for _, host := range order {
		require.NotNil(t, p.peek(host), host)
	}
	require.Len(t, hostsOf(&p), maxHosts)
}

func TestPerHostKeepsWhatIsUsedBetweenAdditions(t *testing.T) {
	var p perHost[hostValue]
	kept := valueOf(&p, "kept")
	for i := range 2 * maxHosts {
		valueOf(&p, nthHost(i))
		require.Same(t, kept, valueOf(&p, "kept"))
	}
	assert.Len(t, hostsOf(&p), maxHosts)
}

func TestPerHostStartsAfreshAfterEviction(t *testing.T) {
	var p perHost[hostValue]
	before := valueOf(&p, "a")
	for i := range maxHosts {
		valueOf(&p, nthHost(i))
	}
	require.Nil(t, p.peek("a"))
	assert.NotSame(t, before, valueOf(&p, "a"))
}

func TestPerHostKeepsNoURLInMemory(t *testing.T) {
	var p perHost[hostValue]
	url := "https://api.example.com/" + strings.Repeat("x", 1000)
	host := url[8:23]
	valueOf(&p, host)
	for kept := range hostsOf(&p) {
		assert.Equal(t, host, kept)
		assert.NotSame(t, unsafe.StringData(host), unsafe.StringData(kept))
	}
}

func TestPerHostSurvivesAPanicWhileAdding(t *testing.T) {
	var p perHost[hostValue]
	for i := range maxHosts {
		valueOf(&p, nthHost(i))
	}
	assert.Panics(t, func() { p.get("bad", func(*hostValue) { panic("no") }) })
	assert.Nil(t, p.peek("bad"))
	assert.Len(t, hostsOf(&p), maxHosts, "nothing was evicted for it")
	assert.Equal(t, "bad", valueOf(&p, "bad").host)
}

func TestPerHostOpensOnceUnderConcurrency(t *testing.T) {
	var p perHost[hostValue]
	var opened atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for _, i := range rand.Perm(maxHosts) {
				n := p.get(nthHost(i), func(n *hostValue) { opened.Add(1); n.host = nthHost(i) })
				assert.Equal(t, nthHost(i), n.host)
			}
		})
	}
	wg.Wait()
	assert.EqualValues(t, maxHosts, opened.Load())
}

func TestPerHostStaysWholeUnderConcurrentEviction(t *testing.T) {
	var p perHost[hostValue]
	var wg sync.WaitGroup
	for seed := range uint64(8) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(seed, 7))
			for range 1000 {
				i := r.IntN(2 * maxHosts)
				assert.Equal(t, nthHost(i), valueOf(&p, nthHost(i)).host)
				if n := p.peek(nthHost(i + 1)); n != nil {
					assert.Equal(t, nthHost(i+1), n.host)
				}
			}
		})
	}
	wg.Wait()
	assert.Len(t, hostsOf(&p), maxHosts)
	assert.Equal(t, maxHosts, p.table.Load().len)
	for host := range hostsOf(&p) {
		require.Equal(t, host, p.peek(host).host, "each is found where it is")
	}
}

func TestPerHostFindsWithoutAllocating(t *testing.T) {
	var p perHost[hostValue]
	open := func(*hostValue) {}
	p.get("a", open)
	assert.Zero(t, testing.AllocsPerRun(1000, func() { p.get("a", open) }))
	assert.Zero(t, testing.AllocsPerRun(1000, func() { p.peek("b") }))
}

func BenchmarkPerHost(b *testing.B) {
	open := func(*hostValue) {}
	b.Run("find", func(b *testing.B) {
		var p perHost[hostValue]
		b.ReportAllocs()
		for b.Loop() {
			p.get("api.example.com", open)
		}
	})
	b.Run("find in parallel", func(b *testing.B) {
		var p perHost[hostValue]
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				p.get("api.example.com", open)
			}
		})
	})
	b.Run("add", func(b *testing.B) {
		var p perHost[hostValue]
		names := make([]string, 20*maxHosts)
		for i := range names {
			names[i] = nthHost(i)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			p.get(names[i%len(names)], open)
		}
	})
}
