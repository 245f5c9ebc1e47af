package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// never draws no fault.
func never(bool, bool) fault { return noFault }

// first draws a fault for the first request only.
func first(f fault) func(bool, bool) fault {
	var drawn atomic.Bool
	return func(bool, bool) fault {
		if drawn.Swap(true) {
			return noFault
		}
		return f
	}
}

func newTestLoad(t *testing.T, s *server) *load {
	l, err := newLoad(s.http1.Addr, s.http2.Addr, 2)
	require.NoError(t, err)
	t.Cleanup(l.closeIdle)
	return l
}

// Each kind of request succeeds over each protocol, and the servers count it.
func TestNoFault(t *testing.T) {
	s := newServer(t, never)
	l := newTestLoad(t, s)
	for _, k := range kinds() {
		for _, lane := range l.lanes {
			for _, host := range []int{-1, 7} {
				l.sendOne(k, lane, host, maxPayload)
			}
		}
		assert.Equal(t, 4, l.outcomes[outcome{k.name, succeeded}], k.name)
	}
	assert.Zero(t, l.wrong.Load())
	require.NoError(t, l.bodies.Check())
	got := s.stats()
	assert.EqualValues(t, 4*len(kinds()), got.Requests)
	assert.EqualValues(t, 4*len(kinds())-4, got.Whole)
	assert.EqualValues(t, 8, got.Once)
	assert.Zero(t, got.Twice)
	assert.Zero(t, got.Wrong)
}

// A client that does not retry sees each fault.
func TestFaults(t *testing.T) {
	want := map[fault][]string{
		unavailable: {"503"},
		early:       {"503", "error"}, // the end of the connection may be faster
		resets:      {"error"},
		cuts:        {brokeOff, "503"},
		stalls:      {"error", "503"},
		leaves:      {"error", succeeded}, // net/http sends it again after a GOAWAY
	}
	for isHTTP2 := range 2 {
		for f := unavailable; f < faultCount; f++ {
			if f == leaves && isHTTP2 == 0 {
				continue
			}
			for range 8 { // a fault has several forms
				draw := first(f)
				ctx, cancel := context.WithCancel(t.Context())
				s := newServer(t, func(isUpload, isHTTP2 bool) fault {
					if f == stalls { // the client cancels the request after it has arrived
						time.AfterFunc(20*time.Millisecond, cancel)
					}
					return draw(isUpload, isHTTP2)
				})
				l := newTestLoad(t, s)
				lane := l.lanes[isHTTP2]
				lane.client = &http.Client{Transport: lane.base}
				p := payload{1, 50_000, true}
				req, err := l.newRequest(kinds()[3], lane, -1, p)
				require.NoError(t, err)
				assert.Contains(t, want[f], l.send(lane, req.WithContext(ctx), p.id), faultNames[f])
				cancel()
				assert.Equal(t, 1, s.stats().Faults[faultNames[f]])
				assert.Zero(t, s.stats().Twice)
				assert.Zero(t, s.stats().Wrong)
				l.closeIdle()
			}
		}
	}
}

// The servers notice a request that arrives again, even over the other
// protocol, and one with a wrong body.
func TestServersNoticeFlaws(t *testing.T) {
	s := newServer(t, never)
	l := newTestLoad(t, s)
	post := func(lane *lane, content string) {
		req, err := http.NewRequest(http.MethodPost, "http://"+lane.addr+"/1", strings.NewReader(content))
		require.NoError(t, err)
		resp, err := lane.client.Do(req)
		require.NoError(t, err)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	whole := string(payload{70, 500, true}.bytes())
	post(l.lanes[0], whole)
	assert.Zero(t, s.stats().Twice)
	post(l.lanes[1], whole)
	assert.EqualValues(t, 1, s.stats().Twice)
	post(l.lanes[0], whole)
	assert.EqualValues(t, 2, s.stats().Twice)
	post(l.lanes[0], string(payload{6, 500, true}.bytes()))
	post(l.lanes[0], string(payload{70, 500, false}.bytes()))
	assert.EqualValues(t, 2, s.stats().Twice)

	assert.Zero(t, s.stats().Wrong)
	for i, lane := range l.lanes {
		post(lane, whole[:300]+"?"+whole[301:])
		post(lane, whole[:499])
		post(lane, whole+"?")
		assert.EqualValues(t, 3*(i+1), s.stats().Wrong)
	}
}

// The client notices a response with a wrong body.
func TestClientNoticesWrongResponse(t *testing.T) {
	s := newServer(t, never)
	l := newTestLoad(t, s)
	req, err := l.newRequest(kinds()[0], l.lanes[0], -1, payload{id: 5, size: headLen})
	require.NoError(t, err)
	assert.Equal(t, succeeded, l.send(l.lanes[0], req, 5))
	assert.Zero(t, l.wrong.Load())
	assert.Equal(t, "200 with a wrong body", l.send(l.lanes[0], req, 6))
	assert.EqualValues(t, 1, l.wrong.Load())
}

func TestStatsOverHTTP(t *testing.T) {
	s := newServer(t, never)
	l := newTestLoad(t, s)
	l.sendOne(kinds()[2], l.lanes[1], -1, 1000)
	p := servers{addr1: s.http1.Addr}
	got, err := p.stats()
	require.NoError(t, err)
	assert.Equal(t, s.stats(), got)
	assert.EqualValues(t, 1, got.Once)
}

func TestDrawFault(t *testing.T) {
	const n = 100_000
	for _, upload := range []bool{false, true} {
		for _, http2 := range []bool{false, true} {
			var drawn [faultCount]int
			for range n {
				drawn[drawFault(upload, http2)]++
			}
			assert.InDelta(t, 0.9*n, drawn[noFault], 0.01*n)
			assert.Equal(t, upload, drawn[early] > 0)
			assert.Equal(t, http2, drawn[leaves] > 0)
			for f := unavailable; f < early; f++ {
				assert.Greater(t, drawn[f], n/100)
			}
		}
	}
}

// report names each flaw of a run.
func TestReport(t *testing.T) {
	good := func() (*load, stats) {
		l := &load{outcomes: map[outcome]int{}}
		for _, k := range kinds() {
			l.outcomes[outcome{k.name, succeeded}] = 9
			l.outcomes[outcome{k.name, "error"}] = 1
		}
		st := stats{Once: 10, Faults: map[string]int{}}
		for f := unavailable; f < faultCount; f++ {
			st.Faults[faultNames[f]] = 1
		}
		return l, st
	}
	for _, tt := range []struct {
		name, want string
		spoil      func(*load, *stats)
	}{
		{"no flaw", "", func(*load, *stats) {}},
		{"a request arrived twice", "1 of 10 POSTs without a key arrived twice", func(_ *load, st *stats) { st.Twice = 1 }},
		{"a request body was wrong", "1 request bodies and 0 response", func(_ *load, st *stats) { st.Wrong = 1 }},
		{"a response body was wrong", "0 request bodies and 1 response", func(l *load, _ *stats) { l.wrong.Add(1) }},
		{"a fault did not occur", "did not occur: stall", func(_ *load, st *stats) { st.Faults[faultNames[stalls]] = 0 }},
		{"a kind fails", "GET: none succeeded", func(l *load, _ *stats) { delete(l.outcomes, outcome{"GET", succeeded}) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			l, st := good()
			tt.spoil(l, &st)
			err := l.report(io.Discard, st)
			if tt.want == "" {
				assert.NoError(t, err)
			} else {
				assert.ErrorContains(t, err, tt.want)
			}
		})
	}
}

func TestPayload(t *testing.T) {
	p := payload{id: 1<<40 + 3, size: 40_000, once: true}
	got, ok := parse(p.bytes())
	assert.True(t, ok)
	assert.Equal(t, p, got)
	for name, b := range map[string][]byte{
		"empty":         nil,
		"cut":           p.bytes()[:100],
		"too long":      append(p.bytes(), 0),
		"of another id": append(p.bytes()[:headLen:headLen], payload{id: 9, size: p.size}.rest()...),
		"without magic": make([]byte, 100),
		"no whole head": payload{id: 1, size: headLen}.bytes()[:headLen-1],
	} {
		_, ok := parse(b)
		assert.False(t, ok, name)
	}
}
