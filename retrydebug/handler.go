package retrydebug

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
)

// Config configures [New].
type Config struct {
	_ [0]func() // no unkeyed literals, no comparison

	// Transports contains the RetryTransports to show, by name. There must be
	// at least one. A name is any text but "". The page and the JSON show it.
	Transports map[string]*httpretry.RetryTransport

	// Reloaders give Transports the policies of files. The page shows the last
	// change of each file, its error, and the policies in effect.
	Reloaders []*policyfile.Reloader
}

// Handler returns a handler that shows one RetryTransport, which has no name.
// It panics if t is nil.
func Handler(t *httpretry.RetryTransport) http.Handler {
	if t == nil {
		panic("retrydebug: Handler: nil: want a RetryTransport")
	}
	return handler{{origins: t.Origins}}
}

// New returns a handler that shows several RetryTransports, each under its
// name. It copies cfg. The error has one line for each invalid name, transport
// or Reloader.
func New(cfg Config) (http.Handler, error) {
	const path = "retrydebug: Config.Transports"
	if len(cfg.Transports) == 0 {
		return nil, errors.New(path + ": none: want at least one RetryTransport")
	}
	var h handler
	var problems []error
	bad := func(format string, args ...any) {
		problems = append(problems, fmt.Errorf(format, args...))
	}
	files := map[*httpretry.RetryTransport]*policyfile.Reloader{}
	for i, r := range cfg.Reloaders {
		switch known := slices.Collect(maps.Values(cfg.Transports)); {
		case r == nil || r.Transport == nil || !slices.Contains(known, r.Transport):
			bad("retrydebug: Config.Reloaders[%d]: want a Reloader of one of Transports", i)
		case files[r.Transport] != nil:
			bad("retrydebug: Config.Reloaders[%d]: want one for each of Transports", i)
		default:
			files[r.Transport] = r
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cfg.Transports)) {
		t := cfg.Transports[name]
		if name == "" {
			bad("%s[%q]: want a name that is not empty", path, name)
		}
		if t == nil {
			bad("%s[%q]: nil: want a RetryTransport", path, name)
			continue
		}
		h = append(h, source{name, t.Origins, files[t]})
	}
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}
	return h, nil
}

// handler shows its sources. They are sorted by name.
type handler []source

// source is where the state of a RetryTransport is from.
type source struct {
	name     string // "" only for Handler
	origins  func() []httpretry.OriginStatus
	reloader *policyfile.Reloader // or nil
}

// ServeHTTP answers GET and HEAD.
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
	query := r.URL.Query()
	format := query.Get("format")
	if !slices.Contains([]string{"", "html", "json"}, format) {
		http.Error(w, fmt.Sprintf("retrydebug: format: %q: want html or json", format),
			http.StatusBadRequest)
		return
	}

	// The clock is read first, so that no cool-down has ended before then.
	s := h.state(time.Now().UTC(), query.Has("policies"))
	render := s.page
	header.Set("Content-Type", "text/html; charset=utf-8")
	s.Refresh = query.Get("refresh") != "0" && !s.Policies
	if format == "json" {
		render = s.json
		header.Set("Content-Type", "application/json")
	}
	body, err := render()
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
