package integration

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrydebug"
	"github.com/seed421102f4/httpretry/retrytest"
)

// debugPage is a page of retrydebug with two transports, and a browser without
// scripts.
type debugPage struct {
	transport *httpretry.RetryTransport // the other one has sent nothing
	url       string
	browser   context.Context
	messages  func() []string // of the browser's console
}

func newDebugPage(t *testing.T) *debugPage {
	t.Helper()
	p := new(debugPage)
	p.browser, p.messages = browser(t)
	var err error
	p.transport, err = httpretry.New(httpretry.Config{
		Base: retrytest.Base(t, retrytest.Always(retrytest.Func(func(req *http.Request) (*http.Response, error) {
			resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}}
			switch name, _, _ := strings.Cut(req.URL.Hostname(), "."); name {
			case "failing":
				resp.StatusCode = http.StatusServiceUnavailable
			case "quota":
				resp.StatusCode = http.StatusTooManyRequests
				resp.Header.Set("Retry-After", "3600")
			}
			return resp, nil
		}))),
		Policy: httpretry.Policy{MaxAttempts: 1},
		Policies: map[string]httpretry.Policy{
			"GET failing.example.com/v1/indexes/{index}/documents": {MaxAttempts: 1},
		},
	})
	require.NoError(t, err)
	handler, err := retrydebug.New(retrydebug.Config{Transports: map[string]*httpretry.RetryTransport{
		"search": p.transport, strings.Repeat("a-very-long-name-", 8) + "of-a-transport": new(httpretry.RetryTransport),
	}})
	require.NoError(t, err)
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	p.url = server.URL + "/"
	_, err = chromedp.Call(p.browser, emulation.SetScriptExecutionDisabled,
		emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	return p
}

// browser starts Chromium, and returns its context and the messages of its
// console.
func browser(t *testing.T) (context.Context, func() []string) {
	t.Helper()
	// A busy machine takes long to start a browser.
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program(t, "chromium")),
		chromedp.NoSandbox, chromedp.WSURLReadTimeout(2*time.Minute))
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewExecAllocator(ctx, options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	var mu sync.Mutex
	var messages []string
	require.NoError(t, chromedp.Listen(ctx, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		if e, ok := event.(*log.EventEntryAdded); ok { // also of a Content-Security-Policy
			messages = append(messages, e.Entry.Text+" "+e.Entry.URL)
		}
	}))
	return ctx, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return messages
	}
}

// send sends requests to origins of all lengths and states.
func (p *debugPage) send(t *testing.T) {
	t.Helper()
	for _, url := range []string{
		"https://quota.example.org", "https://failing.example.com/v1/indexes/1/documents", "https://api.example.com",
		"http://[2001:db8::1]:9200", "https://" + strings.Repeat("a-very-long-name.", 14) + "example.org",
	} {
		resp, err := (&http.Client{Transport: p.transport}).Get(url)
		if err == nil { // a cool-down ends in an error
			require.NoError(t, resp.Body.Close())
		}
	}
}

// look is how the page looks.
type look struct {
	Width, Screen int     // of the page and the screen
	Contrast      float64 // the least of any text
	Worst         string  // that text
	Dark          bool
}

const lookExpression = `(() => {
	const numbers = color => color.match(/[\d.]+/g).map(Number);
	const luminance = color => {
		const [r, g, b] = numbers(color).map(v => v / 255).map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
		return .2126 * r + .7152 * g + .0722 * b;
	};
	const background = e => {
		for (; e; e = e.parentElement) {
			const color = getComputedStyle(e).backgroundColor;
			if (numbers(color)[3] !== 0) return color;
		}
		return "rgb(255, 255, 255)";
	};
	const contrast = e => {
		const a = luminance(getComputedStyle(e).color), b = luminance(background(e));
		return (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
	};
	const worst = [...document.body.querySelectorAll("*")]
		.filter(e => [...e.childNodes].some(n => n.nodeType === Node.TEXT_NODE && n.data.trim()))
		.reduce((a, b) => contrast(b) < contrast(a) ? b : a);
	return {
		Width: document.documentElement.scrollWidth, Screen: innerWidth,
		Contrast: contrast(worst), Worst: worst.outerHTML, Dark: luminance(background(document.body)) < .1,
	};
})()`

// The page of retrydebug can be read in light and dark and on a phone, and by a
// screen reader.
func TestDebugPageLooks(t *testing.T) {
	p := newDebugPage(t)
	p.send(t)
	for name, width := range map[string]int64{"light": 1200, "dark": 1200, "light-phone": 375, "dark-phone": 375} {
		scheme, _, _ := strings.Cut(name, "-")
		_, err := chromedp.Call(p.browser, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		require.NoError(t, err)
		require.NoError(t, chromedp.Do(p.browser, chromedp.EmulateViewport(width, 900),
			chromedp.Navigate(p.url+"?refresh=0")))
		shot, err := chromedp.Run(p.browser, chromedp.FullScreenshot(100))
		require.NoError(t, err)
		if folder := os.Getenv("INTEGRATION_SCREENSHOTS"); folder != "" {
			require.NoError(t, os.WriteFile(filepath.Join(folder, "debugpage-"+name+".png"), shot, 0o644))
		}
		got, err := chromedp.Run(p.browser, chromedp.Evaluate[look](lookExpression))
		require.NoError(t, err)
		assert.LessOrEqual(t, got.Width, got.Screen, "%s: the page scrolls sideways", name)
		assert.GreaterOrEqual(t, got.Contrast, 4.5, got.Worst)
		assert.Equal(t, scheme == "dark", got.Dark, name)

		tree, err := chromedp.Call(p.browser, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
		require.NoError(t, err)
		roles := map[string]int{}
		for _, node := range tree.Nodes {
			if node.Role != nil && !node.Ignored {
				roles[strings.Trim(string(node.Role.Value), `"`)]++
			}
		}
		assert.Equal(t, 1, roles["table"], name)
		assert.GreaterOrEqual(t, roles["columnheader"], 5, name)
		assert.GreaterOrEqual(t, roles["rowheader"], 5, name) // one for each origin
	}
	assert.Empty(t, p.messages(), "the console has messages")
}

// The page shows a new state without a click, and without scripts.
func TestDebugPageRefreshesItself(t *testing.T) {
	p := newDebugPage(t)
	require.NoError(t, chromedp.Do(p.browser, chromedp.Navigate(p.url)))
	p.send(t)
	require.Eventually(t, func() bool {
		// While the browser loads a page, there is none to ask.
		text, err := chromedp.Run(p.browser, chromedp.Evaluate[string]("document.body.innerText"))
		return err == nil && strings.Contains(text, "https://quota.example.org")
	}, 4*time.Minute, 50*time.Millisecond)
}
