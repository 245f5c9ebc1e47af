package integration

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrydebug"
	"github.com/seed421102f4/httpretry/retrytest"
	"github.com/seed421102f4/httpretry/strategies"
)

// debugPage is a page of retrydebug and a browser without scripts.
type debugPage struct {
	transport  *httpretry.RetryTransport            // that send uses
	transports map[string]*httpretry.RetryTransport // by name
	url        string
	browser    context.Context
	messages   func() []string // of the browser's console
}

// newDebugPage returns the page of a transport. With names, it is the page of
// several, and send uses the last of them.
func newDebugPage(t *testing.T, names ...string) *debugPage {
	p := &debugPage{transport: scriptedTransport(t)}
	p.browser, p.messages = browser(t)
	handler := retrydebug.Handler(p.transport)
	if len(names) > 0 {
		p.transports = map[string]*httpretry.RetryTransport{}
		for _, name := range names {
			p.transport = scriptedTransport(t)
			p.transports[name] = p.transport
		}
		var err error
		handler, err = retrydebug.New(retrydebug.Config{Transports: p.transports})
		require.NoError(t, err)
	}
	mux := http.NewServeMux()
	mux.Handle("/debug/httpretry", handler)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	p.url = server.URL + "/debug/httpretry"

	_, err := chromedp.Call(p.browser, emulation.SetScriptExecutionDisabled,
		emulation.SetScriptExecutionDisabledParams{Value: true})
	require.NoError(t, err)
	const script = `data:text/html,<title>before</title><script>document.title = "after"</script>`
	require.NoError(t, chromedp.Do(p.browser, chromedp.Navigate(script)))
	require.Equal(t, "before", evaluate[string](t, p, "document.title"), "scripts run")
	return p
}

// browser starts Chromium, and returns its context and the messages of its
// console.
func browser(t *testing.T) (context.Context, func() []string) {
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
		switch e := event.(type) {
		case *runtime.EventExceptionThrown:
			messages = append(messages, e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			messages = append(messages, string(e.Type))
		case *log.EventEntryAdded: // also of a Content-Security-Policy
			messages = append(messages, e.Entry.Text+" "+e.Entry.URL)
		}
	}))
	return ctx, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return messages
	}
}

func evaluate[T any](t *testing.T, p *debugPage, expression string) T {
	t.Helper()
	v, err := chromedp.Run(p.browser, chromedp.Evaluate[T](expression))
	require.NoError(t, err)
	return v
}

// scriptedTransport returns a transport whose answers depend on the name of the
// host. Requests that wait do so until the test ends.
func scriptedTransport(t *testing.T) *httpretry.RetryTransport {
	base := retrytest.Base(t, retrytest.Always(retrytest.Func(func(req *http.Request) (*http.Response, error) {
		resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}}
		switch name, _, _ := strings.Cut(req.URL.Hostname(), "."); name {
		case "search", "payments", "failing":
			resp.StatusCode = http.StatusServiceUnavailable
		case "quota":
			resp.StatusCode = http.StatusTooManyRequests
			resp.Header.Set("Retry-After", "3600")
		}
		return resp, nil
	})))
	policy := httpretry.Policy{
		Backoff: strategies.Constant{Wait: time.Hour}, MaxRetryAfter: time.Minute,
		Budget: &httpretry.HostBudget{Window: time.Hour},
	}
	quick := policy
	quick.MaxAttempts, quick.Backoff = 2, strategies.Constant{}
	small := policy
	small.Budget = &httpretry.HostBudget{Window: time.Hour, Burst: 1}
	unlimited := policy
	unlimited.Budget = httpretry.Unlimited{}
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy, Policies: map[string]httpretry.Policy{
		"failing.example.com": quick, "payments.example.com": small, "*.example.org": unlimited,
		"POST search.internal.example.net:8080/v1/indexes/{index}/documents": small,
	}})
	require.NoError(t, err)
	return transport
}

// send sends n GETs, and waits for those that do not wait for a retry.
func (p *debugPage) send(t *testing.T, n int, origin string, waiting int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(cancel)
	ended := make(chan struct{}, n)
	for range n {
		wg.Go(func() {
			defer func() { ended <- struct{}{} }()
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, origin, nil)
			if !assert.NoError(t, err) {
				return
			}
			if resp, err := p.transport.RoundTrip(req); err == nil {
				assert.NoError(t, resp.Body.Close())
			}
		})
	}
	for range n - waiting {
		<-ended
	}
	require.Eventually(t, func() bool {
		for _, s := range p.transport.Origins() {
			if s.Origin == origin {
				return s.Waiting == waiting
			}
		}
		return false
	}, time.Minute, 10*time.Millisecond)
}

// sendAll brings origins into all states.
func (p *debugPage) sendAll(t *testing.T) {
	p.send(t, 1, "https://quota.example.org", 0)
	p.send(t, 2, "https://payments.example.com", 1)
	search := "http://search.internal.example.net:8080"
	p.send(t, 3, search, 3)
	post, err := http.NewRequest(http.MethodPost, search+"/v1/indexes/1/documents", nil)
	require.NoError(t, err)
	resp, err := p.transport.RoundTrip(post) // without a key, so it is not retried
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	p.send(t, 1, "https://failing.example.com", 0)
	p.send(t, 351, "https://api.example.com", 0)
	p.send(t, 12, "http://[2001:db8::1]:9200", 0)
	p.send(t, 1, "https://"+strings.Repeat("a-very-long-name.", 14)+"example.org", 0)
}

// look is how the page looks.
type look struct {
	Width, Screen int     // of the page and the screen
	Contrast      float64 // the least of any text
	Worst         string  // that text
	Dark          bool
	Rows          int
	Blocks        bool // whether a row is a block
	Columns       bool // whether the names of the columns can be seen
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
		Contrast: contrast(worst), Worst: worst.outerHTML,
		Dark: luminance(background(document.body)) < .1,
		Rows: document.querySelectorAll("tbody tr").length,
		Blocks: getComputedStyle(document.querySelector("tbody tr")).display !== "table-row",
		Columns: document.querySelector("thead").getBoundingClientRect().height > 5,
	};
})()`

// looks are the screens that the page is shown on.
var looks = []struct {
	name          string
	width, height int64
	dark          bool
}{
	{"light", 1200, 620, false},
	{"dark", 1200, 620, true},
	{"tablet", 820, 1000, false},
	{"phone", 375, 900, false},
	{"phone-dark", 375, 900, true},
}

// The page of retrydebug can be read in light and dark and on a phone.
func TestDebugPageLooks(t *testing.T) {
	p := newDebugPage(t)
	p.sendAll(t)
	p.checkLooks(t, "debugpage", 1, 8)
}

// So can the page of several transports.
func TestDebugPageOfSeveralLooks(t *testing.T) {
	long := strings.Repeat("a-very-long-name-", 8) + "of-a-transport"
	p := newDebugPage(t, long, "billing", "search")
	p.sendAll(t) // by search
	p.transport = p.transports["billing"]
	p.send(t, 3, "https://api.example.com", 0)
	p.checkLooks(t, "debugpages", 2, 8+1)
}

// checkLooks shows the page, which has the given numbers of tables and of rows
// in them, on each of looks.
func (p *debugPage) checkLooks(t *testing.T, file string, tables, rows int) {
	for _, s := range looks {
		t.Run(s.name, func(t *testing.T) {
			scheme := "light"
			if s.dark {
				scheme = "dark"
			}
			_, err := chromedp.Call(p.browser, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
				Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
			})
			require.NoError(t, err)
			require.NoError(t, chromedp.Do(p.browser, chromedp.EmulateViewport(s.width, s.height),
				chromedp.Navigate(p.url+"?refresh=0")))
			shot, err := chromedp.Run(p.browser, chromedp.FullScreenshot(100))
			require.NoError(t, err)
			if folder := os.Getenv("INTEGRATION_SCREENSHOTS"); folder != "" {
				require.NoError(t, os.WriteFile(filepath.Join(folder, file+"-"+s.name+".png"), shot, 0o644))
			}
			got := evaluate[look](t, p, lookExpression)
			assert.LessOrEqual(t, got.Width, got.Screen, "the page scrolls sideways")
			assert.EqualValues(t, s.width, got.Screen)
			assert.GreaterOrEqual(t, got.Contrast, 4.5, got.Worst)
			assert.Equal(t, s.dark, got.Dark)
			assert.Equal(t, rows, got.Rows)
			assert.Equal(t, s.width < 1000, got.Blocks)
			assert.Equal(t, s.width >= 1000, got.Columns)
			p.checkTree(t, got, tables)
		})
	}
	assert.Empty(t, p.messages(), "the console has messages")
}

// checkTree checks that a screen reader gets a table with names of its columns
// and rows, even if the rows are blocks.
func (p *debugPage) checkTree(t *testing.T, l look, tables int) {
	cells := 9 * l.Rows
	// Of an origin's second row, a phone does not show the empty cells.
	if l.Blocks {
		cells -= 5
	}
	tree, err := chromedp.Call(p.browser, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	require.NoError(t, err)
	roles := map[string]int{}
	for _, node := range tree.Nodes {
		if node.Role != nil && !node.Ignored {
			roles[strings.Trim(string(node.Role.Value), `"`)]++
		}
	}
	for role, want := range map[string]int{
		"table": tables, "row": l.Rows + tables, "columnheader": 10 * tables,
		"rowheader": l.Rows, "cell": cells,
	} {
		assert.Equal(t, want, roles[role], role)
	}
}

// The page shows a new state without a click, until its link stops that.
func TestDebugPageRefreshesItself(t *testing.T) {
	p := newDebugPage(t)
	require.NoError(t, chromedp.Do(p.browser, chromedp.Navigate(p.url)))
	require.Contains(t, evaluate[string](t, p, "document.body.innerText"), "No requests yet.")
	p.sendAll(t)
	// While the browser loads a page, there is none to ask, and no link.
	shows := func(expression, text string) bool {
		got, err := chromedp.Run(p.browser, chromedp.Evaluate[string](expression))
		matches, _ := regexp.MatchString(text, got) // the texts below are valid
		return err == nil && matches
	}
	eventually := func(expression, text string) {
		t.Helper()
		require.Eventually(t, func() bool { return shows(expression, text) }, 4*time.Minute, 50*time.Millisecond)
	}
	click := func(link, text string) {
		t.Helper()
		require.Eventually(t, func() bool {
			if shows("document.body.innerText", text) {
				return true
			}
			ctx, cancel := context.WithTimeout(p.browser, 10*time.Second)
			defer cancel()
			_ = chromedp.Do(ctx, chromedp.Click(link)) // the next look shows whether it worked
			return false
		}, 4*time.Minute, 50*time.Millisecond)
	}
	eventually("document.body.innerText", `https://quota\.example\.org[\s\S]*ends in 5\d min`)

	click(`a[href="?refresh=0"]`, "Does not refresh")
	eventually("location.href", "^"+regexp.QuoteMeta(p.url+"?refresh=0")+"$")
	click(`a[href="?"]`, "Refreshes every")
	eventually("location.href", "^"+regexp.QuoteMeta(p.url+"?")+"$")
	assert.Empty(t, p.messages(), "the console has messages")
}
