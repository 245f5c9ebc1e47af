package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/bench/internal/peers"
)

func startHandler(t *testing.T) string {
	t.Helper()
	s := httptest.NewServer(newHandler())
	t.Cleanup(s.Close)
	return s.URL
}

func TestServer(t *testing.T) {
	url := startHandler(t)
	var r callResults
	for range 100 {
		require.NoError(t, r.call(http.DefaultClient, url+"/flaky"))
	}
	assert.EqualValues(t, 90, r.successful)
	require.NoError(t, r.call(http.DefaultClient, url+"/ok"))
	assert.EqualValues(t, 91, r.successful)
	require.NoError(t, r.call(http.DefaultClient, url+"/down"))
	assert.EqualValues(t, 91, r.successful)
	assert.Len(t, r.milliseconds, 102)
	count, err := served(url)
	require.NoError(t, err)
	assert.EqualValues(t, 102, count)
}

func TestServerAnswersAMeetingTogether(t *testing.T) {
	url := startHandler(t)
	for range 2 { // a meeting begins after another
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() { assert.NoError(t, new(callResults).call(http.DefaultClient, url+"/meet?n=3")) })
		}
		wg.Wait()
	}
	assert.Error(t, new(callResults).call(http.DefaultClient, url+"/meet"))
}

func TestAnotherResponseIsAnError(t *testing.T) {
	for _, status := range []int{200, 503, 404} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, "another body")
		}))
		var r callResults
		assert.ErrorContains(t, r.call(http.DefaultClient, s.URL), "12 bytes")
		assert.Empty(t, r.milliseconds)
		s.Close()
	}
}

func TestLoadRow(t *testing.T) {
	bare, ours := new(loader), &loader{name: "httpretry"}
	bare.add(callResults{[]float64{1, 3, 2}, 3}, time.Second, 30*time.Microsecond, 3)
	bare.add(callResults{[]float64{1, 3, 2}, 3}, time.Second, 30*time.Microsecond, 3)
	ours.add(callResults{[]float64{4, 2, 3}, 3}, 2*time.Second, 80*time.Microsecond, 4)
	ours.add(callResults{[]float64{4, 2, 3}, 2}, 2*time.Second, 80*time.Microsecond, 4)
	ours.warmUp = 5
	ours.connections.dialed.Store(7)
	row := ours.row(64, bare)
	assert.InDelta(t, 80.0/4, row.CPU.Median, 1e-9)
	assert.InDelta(t, 2, row.RelativeCPU.Median, 1e-9)
	assert.InDelta(t, 1.25, row.Goodput.Median, 1e-9)
	assert.InDelta(t, 1.25/3, row.Relative.Median, 1e-9)
	assert.InDelta(t, 3, row.P50.Median, 1e-9)
	assert.InDelta(t, 3.98, row.P99.Median, 1e-9)
	assert.InDelta(t, 8.0/6, row.Attempts, 1e-9)
	assert.InDelta(t, 100*5.0/6, row.Succeeded, 1e-9)
	assert.EqualValues(t, 5, row.Connections)
	assert.EqualValues(t, 2, row.Dialed)
	assert.Equal(t, 64, row.Clients)
}

func TestMeasureLoad(t *testing.T) {
	url := startHandler(t)
	p := plan{loadRounds: 2, loadWindow: 20 * time.Millisecond}
	rows, err := measureLoad(p, url, "/flaky", 4)
	require.NoError(t, err)
	require.Len(t, rows, 3)
	for _, row := range rows {
		assert.EqualValues(t, 4, row.Clients)
		assert.GreaterOrEqual(t, row.Connections, int64(4), row.Name)
		assert.Positive(t, row.Goodput.Median, row.Name)
	}
	assert.Greater(t, rows[0].Attempts, 1.0, "httpretry")
	assert.InDelta(t, 1, rows[1].Attempts, 0, "http.Client")
	assert.Greater(t, rows[2].Attempts, 1.0, "naive loop")
}

func TestMeasureWaiting(t *testing.T) {
	all := withoutLibraries()
	rows, err := measureWaiting(startHandler(t), 100, []peers.Peer{all[0], all[2]})
	require.NoError(t, err)
	var names []string
	for _, row := range rows {
		names = append(names, row.Name)
		assert.Zero(t, row.Sockets, row.Name)
		assert.Equal(t, 100, row.Requests)
	}
	assert.Equal(t, []string{
		"httpretry", "httpretry without http.Client", "naive loop", "naive loop without http.Client",
	}, names)
}

func TestRequestsThatDoNotWaitAreAnError(t *testing.T) {
	bare := withoutLibraries()[1]
	_, err := measureWaiting(startHandler(t), 3, []peers.Peer{bare})
	assert.ErrorContains(t, err, "requests did not wait")
}

func TestConnectionsCountTheFirstClose(t *testing.T) {
	url := startHandler(t)
	var counts connections
	base := newBase(&counts, 1, 0)
	require.NoError(t, new(callResults).call(&http.Client{Transport: base}, url+"/ok"))
	assert.EqualValues(t, 1, counts.open.Load())
	base.CloseIdleConnections()
	assert.Eventually(t, func() bool { return counts.open.Load() == 0 }, 5*time.Second, time.Millisecond)
	assert.EqualValues(t, 1, counts.dialed.Load())

	conn, _ := net.Pipe()
	counted := &countedConn{Conn: conn, open: &counts.open}
	counts.open.Store(1)
	counted.Close()
	counted.Close()
	assert.Zero(t, counts.open.Load())
}
