package origintable_test

import (
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/hosttable"
	"github.com/seed421102f4/httpretry/internal/origintable"
)

const origin = "http://a.test"

func parse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	require.NoError(t, err)
	return u
}

func TestFailures(t *testing.T) {
	var table origintable.Table
	assert.Empty(t, table.All())
	first := origintable.Failure{At: time.Unix(1, 0), Text: "timeout"}
	last := origintable.Failure{At: time.Unix(2, 0), Status: 503}
	u := parse(t, "HTTP://A.test:80/path?query")
	table.Get(origin, u).Fail(first)
	assert.Equal(t, first, table.All()[origin].LastFailure)
	assert.Zero(t, table.All()[origin].FailedWithoutRetry)
	table.Get(origin, nil).Fail(last)
	table.Get(origin, nil).FailWithoutRetry()
	table.Get("", nil)

	all := table.All()
	assert.Len(t, all, 2)
	assert.Equal(t, last, all[origin].LastFailure)
	assert.Equal(t, 1, all[origin].FailedWithoutRetry)
	assert.Zero(t, all[origin].Waiting)
	assert.Equal(t, "http://A.test:80", all[origin].URL().String(), "of the first use")
	assert.Equal(t, origintable.State{}, all[""])
}

// A waiting request is counted even if its origin is forgotten.
func TestWaits(t *testing.T) {
	var table origintable.Table
	u := parse(t, origin)
	table.BeginWait(origin, u)
	table.BeginWait(origin, u)
	assert.Equal(t, 2, table.All()[origin].Waiting)
	table.Get(origin, u).FailWithoutRetry()
	for i := range hosttable.MaxEntries {
		table.Get(time.Duration(i).String(), u)
	}
	state := table.All()[origin]
	assert.Equal(t, 2, state.Waiting)
	assert.Zero(t, state.FailedWithoutRetry, "forgotten")
	assert.Equal(t, origin, state.URL().String())
	table.EndWait(origin)
	assert.Equal(t, 1, table.All()[origin].Waiting)
	table.EndWait(origin)
	assert.NotContains(t, table.All(), origin)
	table.BeginWait(origin, u)
	assert.Equal(t, 1, table.All()[origin].Waiting)
}
