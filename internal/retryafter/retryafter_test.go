package retryafter_test

import (
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/internal/retryafter"
)

func TestParseReportsResolution(t *testing.T) {
	none := []string{"0"}
	for name, test := range map[string]struct {
		header           http.Header
		wait, resolution time.Duration
	}{
		"nothing": {http.Header{}, 0, 0},
		"milliseconds": {
			http.Header{"Retry-After-Ms": {"2000"}}, 2 * time.Second, time.Millisecond},
		"seconds": {http.Header{"Retry-After": {"2"}}, 2 * time.Second, time.Second},
		"decimal": {http.Header{"Retry-After": {"2.0"}}, 2 * time.Second, time.Millisecond},
		"date": {http.Header{"Retry-After": {"Thu, 01 Jan 1970 00:00:02 GMT"}},
			2 * time.Second, time.Second},
		"epoch": {http.Header{"Retry-After": {"500000000"}}, 5e8 * time.Second, time.Second},
		"decimal epoch": {http.Header{"Retry-After": {"500000000.5"}},
			5e8*time.Second + time.Second/2, time.Millisecond},
		"epoch in millis": {
			http.Header{"Retry-After": {"500000000000"}}, 5e8 * time.Second, time.Millisecond},
		"policy": {http.Header{"Ratelimit": {`"a";r=0;t=2`}}, 2 * time.Second, time.Second},
		"reset": {http.Header{"Ratelimit-Reset": {"2"}, "Ratelimit-Remaining": none},
			2 * time.Second, time.Second},
		"x reset": {http.Header{"X-Ratelimit-Reset": {"2"}, "X-Ratelimit-Remaining": none},
			2 * time.Second, time.Second},
		"x reset, decimal": {
			http.Header{"X-Ratelimit-Reset": {"2.5"}, "X-Ratelimit-Remaining": none},
			2500 * time.Millisecond, time.Millisecond},
		"longest decides": {http.Header{"Retry-After": {"3", "3.5", "2"}}, 3500 * time.Millisecond,
			time.Millisecond},
		"coarsest, last":  {http.Header{"Retry-After": {"2.0", "2"}}, 2 * time.Second, time.Second},
		"coarsest, first": {http.Header{"Retry-After": {"2", "2.0"}}, 2 * time.Second, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			wait, resolution, ok := retryafter.Parse(
				test.header, func() time.Time { return time.Unix(0, 0) })
			assert.Equal(t, test.wait, wait)
			assert.Equal(t, test.resolution, resolution)
			assert.Equal(t, resolution != 0, ok)
		})
	}
}

func TestSpread(t *testing.T) {
	const s, ms = time.Second, time.Millisecond
	for _, test := range []struct{ asked, resolution, want time.Duration }{
		{0, s, 0}, {0, ms, 0}, {-s, s, 0}, {math.MinInt64, ms, 0},
		{1, s, s}, {s, s, s}, {4 * s, s, s}, {4*s + 4, s, s + 1}, {60 * s, s, 15 * s},
		{120 * s, s, 30 * s}, {121 * s, s, 30 * s},
		{3, ms, 0}, {4, ms, 1}, {s, ms, 250 * ms}, {60 * s, ms, 15 * s}, {121 * s, ms, 30 * s},
		{retryafter.MaxWait, s, 30 * s}, {retryafter.MaxWait, ms, 30 * s},
		{math.MaxInt64, s, 30 * s},
	} {
		assert.Equal(t, test.want, retryafter.Spread(test.asked, test.resolution), "%v, %v",
			test.asked, test.resolution)
	}
}

func TestMaxWaitsCanBeAdded(t *testing.T) {
	wait := retryafter.MaxWait // not constant: a constant would not compile
	wait += wait + wait/2
	assert.Positive(t, wait)
}
