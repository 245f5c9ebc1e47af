package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/seed421102f4/httpretry"
)

// Widths of the columns, for a terminal with 80.
const (
	requestWidth = 16
	resultWidth  = 24
	hintWidth    = 76 // beside an indent of 4
)

const (
	bold   = "1"
	red    = "31"
	green  = "32"
	yellow = "33"
)

// screen prints whole lines, from any goroutine.
type screen struct {
	mu      sync.Mutex
	w       io.Writer
	start   time.Time
	color   bool
	planned map[*http.Request]time.Duration // the wait that was printed last
}

func newScreen(w io.Writer) *screen {
	return &screen{w: w, start: time.Now(), color: isTerminal(w) && os.Getenv("NO_COLOR") == ""}
}

// isTerminal reports whether w shows colors. A Windows console does not by
// itself, and to change that is beyond an example.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || runtime.GOOS == "windows" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

func (s *screen) print(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprintf(s.w, format, args...)
}

// paint colors text. Padding comes first, since it counts characters.
func (s *screen) paint(code, text string) string {
	if !s.color {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (s *screen) title(text string) { s.print("\n%s\n", s.paint(bold, text)) }

// verdict prints whether a scenario ended as its title says.
func (s *screen) verdict(err error, text string) {
	if err != nil {
		s.print("  %s  %v\n", s.paint(red, "FAIL"), err)
		return
	}
	s.print("  %s  %s\n", s.paint(green, "ok"), text)
}

func (s *screen) heading() {
	s.print("%7s %-*s %3s %-*s %s\n",
		"at", requestWidth, "request", "try", resultWidth, "result", "decision")
}

// observe prints an attempt and the decision after it. It is called by
// Config.Observe, which runs on the goroutine of each request.
func (s *screen) observe(ctx context.Context, e httpretry.Event) {
	color, decision := describe(e)
	row := fmt.Sprintf("%6.2fs %-*s %3d ", time.Since(s.start).Seconds(),
		requestWidth, fit(label(ctx, e.Request), requestWidth), e.Attempt)
	if s.wasExtended(e) {
		s.print("%s%s\n", row, s.paint(yellow, fmt.Sprintf("a cool-down extended the wait to %v",
			e.Waited.Round(time.Millisecond))))
	}
	s.print("%s%-*s %s\n", row, resultWidth, fit(outcome(e), resultWidth), s.paint(color, decision))
}

// wasExtended reports whether a request has waited for longer than it was going
// to, because the response to another request asked all of them to wait.
func (s *screen) wasExtended(e httpretry.Event) bool {
	// Timers are late on a busy machine.
	const late = 100 * time.Millisecond
	s.mu.Lock()
	defer s.mu.Unlock()
	planned := s.planned[e.Request]
	if e.Reason != httpretry.ReasonNone {
		delete(s.planned, e.Request)
		return e.Waited > planned+late
	}
	if s.planned == nil {
		s.planned = make(map[*http.Request]time.Duration)
	}
	s.planned[e.Request] = e.Wait
	return e.Waited > planned+late
}

type labelKey struct{}

// withLabel returns a context whose requests have a name on the screen, for
// requests with the same method and path.
func withLabel(ctx context.Context, text string) context.Context {
	return context.WithValue(ctx, labelKey{}, text)
}

func label(ctx context.Context, req *http.Request) string {
	name := req.Method + " " + cmp.Or(req.URL.EscapedPath(), "/")
	if text, ok := ctx.Value(labelKey{}).(string); ok {
		return text + " " + name
	}
	return name
}

// describe returns the decision and its color.
func describe(e httpretry.Event) (color, text string) {
	switch e.Reason {
	case httpretry.ReasonNone:
		return yellow, "retry in " + e.Wait.Round(time.Millisecond).String()
	case httpretry.ReasonSuccess:
		return green, "done"
	default:
		return red, "stop: " + e.Reason.String()
	}
}

// outcome returns the result of an attempt, with the wait that the server asks
// for.
func outcome(e httpretry.Event) string {
	if e.Asked > 0 && e.Response != nil {
		return fmt.Sprintf("%d, asks to wait %v",
			e.Response.StatusCode, e.Asked.Round(time.Millisecond))
	}
	return e.Status()
}

// wrap breaks text between words into lines of at most a width in characters,
// if no word is longer.
func wrap(text string, width int) (lines []string) {
	line := ""
	for word := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line+" "+word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
}

// fit cuts text to a width in characters.
func fit(text string, width int) string {
	if runes := []rune(text); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return text
}
