package retrydebug

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/seed421102f4/httpretry"
)

// Handler returns a handler that shows the origins of t (see
// [httpretry.RetryTransport.Origins]), as a page or as JSON. It answers GET and
// HEAD. It panics if t is nil.
func Handler(t *httpretry.RetryTransport) http.Handler {
	if t == nil {
		panic("retrydebug: Handler: nil RetryTransport")
	}
	return handler(t.Origins)
}

// handler shows the origins that it returns.
type handler func() []httpretry.OriginStatus

func (h handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	header.Set("Content-Security-Policy", contentSecurityPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		header.Set("Allow", "GET, HEAD")
		http.Error(w, "retrydebug: want GET or HEAD", http.StatusMethodNotAllowed)
		return
	}
	// The Accept header has no part in this. A link names the format.
	format := r.URL.Query().Get("format")
	if !slices.Contains([]string{"", "html", "json"}, format) {
		http.Error(w, fmt.Sprintf("retrydebug: format: %q: want html or json", format),
			http.StatusBadRequest)
		return
	}

	// The clock is read first, so that no cool-down has ended before then.
	now := time.Now().UTC()
	origins := h()
	sortByTrouble(origins)
	var body []byte
	var err error
	if format == "json" {
		header.Set("Content-Type", "application/json")
		body, err = renderJSON(now, origins)
	} else {
		header.Set("Content-Type", "text/html; charset=utf-8")
		body, err = renderPage(now, origins, r.URL.Query().Get("refresh") != "0")
	}
	if err != nil {
		http.Error(w, "retrydebug: "+err.Error(), http.StatusInternalServerError)
		return
	}
	header.Set("Content-Length", strconv.Itoa(len(body)))
	if r.Method == http.MethodHead {
		return
	}
	_, _ = w.Write(body) // It fails only if the client has gone.
}
