package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/seed421102f4/httpretry"
)

// screen is where the program prints. On a terminal, its last line may be a
// progress bar.
type screen struct {
	io.Writer
	terminal bool
	drawn    time.Time // when the bar was drawn, zero if there is none
}

func newScreen(w io.Writer) *screen {
	s := &screen{Writer: w}
	if file, ok := w.(*os.File); ok {
		info, err := file.Stat()
		s.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return s
}

// Write prints text in place of the bar.
func (s *screen) Write(p []byte) (int, error) {
	if !s.drawn.IsZero() {
		s.drawn = time.Time{}
		_, _ = io.WriteString(s.Writer, "\r\x1b[K")
	}
	return s.Writer.Write(p)
}

// observe is a Config.Observe.
func (s *screen) observe(_ context.Context, e httpretry.Event) {
	if e.Reason != httpretry.ReasonNone {
		return
	}
	what := "attempt failed"
	if e.Resuming {
		what = "broke off after " + mib(e.Offset)
	}
	if e.Response != nil {
		what += ": " + e.Response.Status
	}
	if e.Err != nil {
		what += ": " + e.Err.Error()
	}
	fmt.Fprintf(s, "  %s; next request in %v\n", what, e.Wait.Round(time.Millisecond))
}

// bar returns a writer that draws how much of total, or of an unknown number if
// that is negative, was written to it.
func (s *screen) bar(total int64) io.Writer { return &progress{screen: s, total: total} }

type progress struct {
	screen         *screen
	total, written int64
}

func (b *progress) Write(p []byte) (int, error) {
	b.written += int64(len(p))
	const width, interval = 40, 50 * time.Millisecond
	if !b.screen.terminal || time.Since(b.screen.drawn) < interval {
		return len(p), nil
	}
	line := mib(b.written)
	if b.total > 0 {
		done := int(b.written * width / b.total)
		line = fmt.Sprintf("[%s%s] %s of %s", strings.Repeat("#", done),
			strings.Repeat(" ", width-done), line, mib(b.total))
	}
	b.screen.drawn = time.Now()
	_, err := fmt.Fprintf(b.screen.Writer, "\r\x1b[K  %s", line)
	return len(p), err
}
