package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// A screen is a device that shows a report.
type screen struct {
	name          string
	width, height int64
	dark          bool
	drawing       string // that it shows
}

var screens = []screen{
	{"light", 1000, 1400, false, "wide"},
	{"dark", 1000, 1400, true, "wide"},
	{"phone", 375, 1400, false, "narrow"},
}

// chromium starts a browser without a window, or skips the test.
func chromium(t *testing.T) (context.Context, func() []string) {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("chromium is not installed: see report_check.sh")
	}
	// A busy machine takes long to start a browser.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox,
		chromedp.WSURLReadTimeout(2*time.Minute))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 8*time.Minute)
	t.Cleanup(cancel)
	var mu sync.Mutex
	var messages []string
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			messages = append(messages, e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			messages = append(messages, fmt.Sprint(e.Type, len(e.Args)))
		}
	}))
	return ctx, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return messages
	}
}

// drawn are the charts of a page that can be seen, and whether each line of
// each of them has a place and a color of its own.
const drawn = `[...document.querySelectorAll("figure svg")].filter(s => s.getBoundingClientRect().height > 0).map(s => ({
	Size: s.dataset.size,
	Lines: [...s.querySelectorAll("path.line")].filter(p => p.getTotalLength() > 0).length,
	Series: JSON.parse(s.parentElement.querySelector("script").textContent).length,
	Visible: getComputedStyle(s.querySelector("path.line")).stroke !== getComputedStyle(document.body).backgroundColor,
	Fits: document.documentElement.scrollWidth <= innerWidth,
	Text: [...s.querySelectorAll("text")].every(e => { const b = e.getBBox(), v = s.viewBox.baseVal;
		return b.x >= -1 && b.x + b.width <= v.width + 1 && b.y + b.height <= v.height + 1; }),
}))`

type drawing struct {
	Size                string
	Lines, Series       int
	Visible, Fits, Text bool
}

// point moves the pointer to the middle of the first chart that can be seen.
const point = `(() => {
	document.activeElement.blur();
	const svg = [...document.querySelectorAll("figure svg")].find(s => s.getBoundingClientRect().height > 0), b = svg.getBoundingClientRect();
	svg.dispatchEvent(new PointerEvent("pointermove", {clientX: b.x + b.width / 2, clientY: b.y + b.height / 2}));
	return document.querySelector(".tip").textContent;
})()`

func evaluate[T any](t *testing.T, ctx context.Context, expression string) T {
	t.Helper()
	v, err := chromedp.Run(ctx, chromedp.Evaluate[T](expression))
	require.NoError(t, err)
	return v
}

// The reports of all commands work in a browser.
func TestReportsInBrowser(t *testing.T) {
	ctx, messages := chromium(t)
	shots := os.Getenv("RETRYLAB_SCREENSHOTS")
	for _, c := range commands() {
		file := filepath.Join(t.TempDir(), c.name+".html")
		_, stderr, status := retrylab(t, append([]string{c.name, "-o=" + file}, quick[c.name]...)...)
		require.Zero(t, status, stderr)
		for _, s := range screens {
			t.Run(c.name+" "+s.name, func(t *testing.T) { look(t, ctx, s, c.name, file, shots) })
		}
	}
	assert.Empty(t, messages(), "the console has messages")
}

func look(t *testing.T, ctx context.Context, s screen, name, file, shots string) {
	scheme := "light"
	if s.dark {
		scheme = "dark"
	}
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(s.width, s.height)))
	_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	require.NoError(t, err)
	require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("file://"+file)))
	drawings := evaluate[[]drawing](t, ctx, drawn)
	// Keys show the values of a chart, and so does the pointer.
	evaluate[bool](t, ctx, fmt.Sprintf(`document.querySelector('figure svg[data-size="%s"]').focus(), true`, s.drawing))
	require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent(kb.End), chromedp.KeyEvent(kb.ArrowLeft), chromedp.KeyEvent(kb.ArrowRight)))
	keyed := evaluate[string](t, ctx, `document.querySelector("figure .tip").textContent`)
	pointed := evaluate[string](t, ctx, point)
	shot, err := chromedp.Run(ctx, chromedp.FullScreenshot(100))
	require.NoError(t, err)
	assert.NotEmpty(t, drawings)
	for i, d := range drawings {
		assert.Equal(t, s.drawing, d.Size, "chart %d", i)
		// The legend has a line for each series, too.
		assert.Equal(t, 2*d.Series, d.Lines, "chart %d: lines", i)
		assert.True(t, d.Visible, "chart %d is not visible", i)
		assert.True(t, d.Fits, "the page is wider than the screen")
		assert.True(t, d.Text, "chart %d: text outside of the drawing", i)
	}
	assert.NotEmpty(t, keyed)
	assert.NotEmpty(t, pointed)
	assert.NotEqual(t, keyed, pointed, "both show the same place")
	if shots != "" {
		require.NoError(t, os.WriteFile(filepath.Join(shots, name+"-"+s.name+".png"), shot, 0o644))
	}
}
