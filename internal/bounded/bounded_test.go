package bounded_test

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/seed421102f4/httpretry/internal/bounded"
)

func TestRun(t *testing.T) {
	for _, tt := range []struct {
		takes  time.Duration
		waits  time.Duration
		inTime bool
	}{
		{0, 0, true},
		{time.Second - 1, time.Second - 1, true},
		{time.Second + 1, time.Second, false},
		{time.Hour, time.Second, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			ran, start := false, time.Now()
			inTime := bounded.Run(time.Second, func() { time.Sleep(tt.takes); ran = true })
			assert.Equal(t, tt.inTime, inTime, tt.takes)
			assert.Equal(t, tt.waits, time.Since(start), tt.takes)
			// A function that is late still runs to its end.
			time.Sleep(2 * time.Hour)
			synctest.Wait()
			assert.True(t, ran, tt.takes)
		})
	}
}

func TestRunPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		assert.PanicsWithValue(t, "boom",
			func() { bounded.Run(time.Second, func() { panic("boom") }) })
		assert.PanicsWithValue(t, "later", func() {
			bounded.Run(time.Second, func() { time.Sleep(time.Second - 1); panic("later") })
		})
		// Nobody is left to receive this one. It does not end the program.
		assert.False(t,
			bounded.Run(time.Second, func() { time.Sleep(time.Minute); panic("too late") }))
		time.Sleep(time.Hour)
	})
}

// Either channel of a Signal ends the wait. The function runs to its end.
func TestRunUntil(t *testing.T) {
	for i := range len(bounded.Signal{}) {
		synctest.Test(t, func(t *testing.T) {
			var stop bounded.Signal
			channel := make(chan struct{})
			stop[i] = channel
			time.AfterFunc(time.Minute, func() { close(channel) })
			ran, start := false, time.Now()
			assert.True(t, bounded.RunUntil(stop, time.Hour, func() { time.Sleep(time.Second) }))
			assert.Equal(t, time.Second, time.Since(start))
			long := func() { time.Sleep(2 * time.Hour); ran = true }
			assert.False(t, bounded.RunUntil(stop, time.Hour, long))
			assert.Equal(t, time.Minute, time.Since(start))
			time.Sleep(3 * time.Hour)
			synctest.Wait()
			assert.True(t, ran)
		})
	}
}

// A function that ends its goroutine has ended.
func TestGoexit(t *testing.T) {
	assert.True(t, bounded.Run(time.Minute, runtime.Goexit))
	assert.NoError(t, bounded.Close(time.Minute, exiting{}))
}

// exiting is closed by a test that fails, for example.
type exiting struct{}

func (exiting) Close() error { runtime.Goexit(); return nil }

// closer is an io.Closer whose Close takes a while.
type closer struct {
	takes time.Duration
	err   error
}

func (c closer) Close() error { time.Sleep(c.takes); return c.err }

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failure := errors.New("close failed")
		start := time.Now()
		assert.NoError(t, bounded.Close(time.Second, closer{}))
		assert.Equal(t, failure, bounded.Close(time.Second, closer{time.Millisecond, failure}))
		assert.NoError(t, bounded.Close(time.Second, closer{time.Hour, failure}),
			"the error is late")
		assert.Equal(t, time.Second+time.Millisecond, time.Since(start))
		time.Sleep(time.Hour)
	})
}

func TestInMemory(t *testing.T) {
	reader, writer := io.Pipe()
	defer writer.Close()
	for name, tt := range map[string]struct {
		body     io.ReadCloser
		inMemory bool
	}{
		"bytes.Reader":          {io.NopCloser(bytes.NewReader(nil)), true},
		"bytes.Buffer":          {io.NopCloser(new(bytes.Buffer)), true},
		"strings.Reader":        {io.NopCloser(strings.NewReader("")), true},
		"with a Close":          {closingReader{strings.NewReader("")}, false},
		"a pipe":                {reader, false},
		"a pipe in NopCloser":   {io.NopCloser(reader), false},
		"a reader of a pipe":    {io.NopCloser(bufio.NewReader(reader)), false},
		"a reader of memory":    {io.NopCloser(io.LimitReader(strings.NewReader(""), 1)), false},
		"NopCloser twice":       {io.NopCloser(io.NopCloser(strings.NewReader(""))), false},
		"NopCloser of no value": {io.NopCloser(nil), false},
		"no body":               {http.NoBody, false},
		"nil":                   {nil, false},
	} {
		assert.Equal(t, tt.inMemory, bounded.InMemory(tt.body), name)
	}
}

// A Close may block even if Read does not.
type closingReader struct{ *strings.Reader }

func (closingReader) Close() error { return nil }
