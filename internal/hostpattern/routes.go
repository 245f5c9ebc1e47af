package hostpattern

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Routes are the patterns of one host that have a method or a path. They do not
// change, and are safe for concurrent use.
type Routes[P any] struct {
	Values []P // of the patterns
	*routes
}

// routes leave all matching to http.ServeMux. Their muxes know no hosts.
type routes struct {
	mux http.ServeMux

	// subtrees finds the pattern of a request that mux would redirect to the
	// same path with a slash at the end. With the patterns "/v1/" and
	// "/v1/tree/", that is a request to /v1/tree, which "/v1/" matches. Each
	// pattern that ends in a slash has one segment more in subtrees. There,
	// /v1/tree/ does not match "/v1/tree/{one}/", but "/v1/{one}/".
	subtrees http.ServeMux

	keys map[string]string // by the pattern in mux
}

// index is the handler of a pattern: its index in Routes.Values, or none.
type index int

// none is the handler of requests that no pattern matches.
const none index = -1

// ServeHTTP implements http.Handler. Nothing calls it.
func (index) ServeHTTP(http.ResponseWriter, *http.Request) {}

// Match returns the index in Values of the pattern that matches req, whose URL
// is not nil, whatever its host is. It allocates nothing if the path is clean
// and the pattern has no wildcards.
func (r *routes) Match(req *http.Request) (i int, ok bool) {
	escaped := req.URL.EscapedPath()
	if escaped == "" {
		escaped = "/" // as net/http sends it
	}
	// "OPTIONS *" and an opaque URL have no path.
	if req.URL.Opaque != "" || escaped[0] != '/' {
		return 0, false
	}
	if req.Method != "" {
		if i, ok := find(&r.mux, req); ok {
			return i, i >= 0
		}
	}
	// ServeMux would redirect the request, or does not know that "" means GET.
	clean := cleanPath(escaped)
	if req.Method == "" || clean != req.URL.EscapedPath() {
		if i, ok := find(&r.mux, probe(req.Method, clean)); ok {
			return i, i >= 0
		}
	}
	return find(&r.subtrees, probe(req.Method, clean+"/"))
}

// find returns the index that mux has for req. It returns false for a redirect,
// and if no pattern matches.
func find(mux *http.ServeMux, req *http.Request) (i int, ok bool) {
	h, _ := mux.Handler(req)
	found, ok := h.(index)
	return int(found), ok
}

// probe returns a request with an escaped path.
func probe(method, escaped string) *http.Request {
	if method == "" {
		method = http.MethodGet
	}
	u := &url.URL{Path: escaped}
	if unescaped, err := url.PathUnescape(escaped); err == nil {
		u.Path, u.RawPath = unescaped, escaped
	}
	return &http.Request{Method: method, URL: u}
}

// cleanPath returns the path to which http.ServeMux would redirect p, which
// begins with a slash.
func cleanPath(p string) string {
	clean := path.Clean(p)
	if strings.HasSuffix(p, "/") && clean != "/" {
		clean += "/"
	}
	return clean
}

// maxRoutes is the number of keys with a path that one host may have. ServeMux
// compares each key that ends in a slash with all others, so the time for a host
// grows with the square of their number.
const maxRoutes = 1000

// newRoutes returns routes with a pattern for all requests. So mux need not find
// out which methods it allows for a request that no other pattern matches.
func newRoutes() (r *routes) {
	r = &routes{keys: make(map[string]string)}
	_ = register(&r.mux, "/", none)
	return r
}

// add adds the pattern of key, or returns the text of a Problem.
func (r *routes) add(key string, p pattern, i index) (problem string) {
	if !muxHasPatterns() {
		return "has a method or a path, which http.ServeMux ignores with " +
			"GODEBUG=httpmuxgo121=1: want another GODEBUG, or a host only"
	}
	if err := register(&r.mux, p.route(), i); err != nil {
		return fmt.Sprintf("conflicts with %s, because some requests match both and neither is "+
			"more specific: want keys of which at most one matches a request, "+
			"or one that matches only requests that the other matches, too", r.conflicting(err))
	}
	if subtree := p.subtree(); subtree != "" {
		// That succeeds, because a conflict would be one in mux, too.
		_ = register(&r.subtrees, subtree, i)
	}
	r.keys[p.route()] = key
	return ""
}

// conflicting returns the other key of a conflict. Only the text of the error
// has it, as the pattern in mux (ServeMux.registerErr).
func (r *routes) conflicting(err error) string {
	_, text, _ := strings.Cut(err.Error(), " conflicts with pattern ")
	quoted, _ := strconv.QuotedPrefix(text)
	other, _ := strconv.Unquote(quoted)
	if key, ok := r.keys[other]; ok {
		return strconv.Quote(cut(key))
	}
	return "another key"
}

// muxHasPatterns reports whether http.ServeMux knows methods and wildcards. It
// does not if GODEBUG asks for the ServeMux of Go 1.21.
func muxHasPatterns() bool {
	var mux http.ServeMux
	mux.Handle("GET /{any}", none)
	_, ok := find(&mux, probe("", "/path"))
	return ok
}

// register returns the error with which mux.Handle panics.
func register(mux *http.ServeMux, pattern string, h http.Handler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			var ok bool
			if err, ok = p.(error); !ok {
				panic(p)
			}
		}
	}()
	mux.Handle(pattern, h)
	return nil
}

// route returns the pattern of http.ServeMux for the method and the path of p.
func (p pattern) route() string {
	route := p.path
	if route == "" {
		route = "/"
	}
	if p.method != "" {
		route = p.method + " " + route
	}
	return route
}

// subtree returns the pattern of routes.subtrees for p, or "".
func (p pattern) subtree() string {
	route := p.route()
	slash := strings.LastIndexByte(route, '/')
	// Without the brace at its start, the last segment is no wildcard.
	if last := route[slash+1:]; strings.HasPrefix(last, "{") && strings.HasSuffix(last, "...}") {
		route = route[:slash+1]
	}
	if !strings.HasSuffix(route, "/") {
		return ""
	}
	name := "one"
	for strings.Contains(route, "{"+name+"}") {
		name += "_"
	}
	return route + "{" + name + "}/"
}

const wantRoute = `as in "POST api.example.com/v1/search", "api.example.com/v1/exports/{id}" ` +
	`or "*.example.com/batch/"`

// cutRoute returns the method, the host and the path of a key.
func cutRoute(s string) (method, host, path, problem string) {
	if i := strings.IndexAny(s, " \t"); i >= 0 {
		method, s = s[:i], strings.TrimLeft(s[i:], " \t")
		switch upper := strings.ToUpper(method); {
		case isMethod(upper) && misspelled(upper) != "":
			return "", "", "", fmt.Sprintf("has the method %q: want %q, or another method, %s",
				method, misspelled(upper), wantRoute)
		// Without a path, only a standard method counts as one.
		case !isMethod(upper),
			method != upper && !strings.Contains(s, "/") &&
				!slices.Contains(standardMethods, upper):
			return "", "", "", "has a space or a control character in it: " + wantPattern
		case method != upper:
			return "", "", "", fmt.Sprintf(
				"has the method %q: want %q, %s", cut(method), cut(upper), wantRoute)
		}
	}
	slash := strings.IndexByte(s, '/')
	if slash < 0 {
		slash = len(s)
	}
	host, path = s[:slash], s[slash:]
	switch {
	case strings.HasSuffix(host, ":") && strings.HasPrefix(path, "//"):
		problem = "has a scheme in it: " + wantPattern
	case host == "" && method+path != "":
		problem = "has no host: want one before the path, " + wantRoute
	case method != "" && path == "":
		problem = fmt.Sprintf(
			"has a method and no path: want %q for all paths", cut(method+" "+host+"/"))
	default:
		problem = pathProblem(path)
	}
	// A pattern for all requests is one for the host.
	isAll := path == "/" || strings.HasPrefix(path, "/{") && strings.HasSuffix(path, "...}") &&
		strings.Count(path, "/") == 1
	if method == "" && isAll {
		path = ""
	}
	return method, host, path, problem
}

var standardMethods = []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut,
	http.MethodPatch, http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace,
	"QUERY"}

// misspelled returns the standard method that s is most likely meant to be: one
// with one letter more, less or another after the first, or with two letters
// swapped. It returns "" for a standard method, and for all others.
func misspelled(s string) string {
	// TRACK is a method of old servers.
	if s == "TRACK" || slices.Contains(standardMethods, s) {
		return ""
	}
	for _, method := range standardMethods {
		a, b := s, method
		for a != "" && b != "" && a[0] == b[0] {
			a, b = a[1:], b[1:]
		}
		hasFirst := len(b) < len(method)
		for a != "" && b != "" && a[len(a)-1] == b[len(b)-1] {
			a, b = a[:len(a)-1], b[:len(b)-1]
		}
		if hasFirst && len(a) <= 1 && len(b) <= 1 ||
			len(a) == 2 && len(b) == 2 && a[0] == b[1] && a[1] == b[0] {
			return method
		}
	}
	return ""
}

// isMethod reports whether s consists of the characters that methods have.
func isMethod(s string) bool {
	other := func(r rune) bool {
		return (r < 'A' || 'Z' < r) && (r < '0' || '9' < r) && r != '-' && r != '_'
	}
	return s != "" && !strings.ContainsFunc(s, other)
}

// pathProblem describes the mistake in the path of a key, if there is one.
func pathProblem(p string) string {
	if p == "" {
		return ""
	}
	if strings.ContainsFunc(p, isBlank) {
		return "has a space or a control character in its path: want it escaped, as in %20"
	}
	if strings.ContainsAny(p, `?#\`) {
		return "has a query, a fragment or a backslash in it: want a path only, " + wantRoute
	}
	// http.ServeMux would take it for itself, which is hardly ever meant.
	if strings.Contains(p, "*") {
		return `has a * in its path: want "/" at the end for all paths below, ` +
			`"{name}" for one segment, or %2A, ` + wantRoute
	}
	if clean := cleanPath(p); clean != p {
		return fmt.Sprintf("has the path %q: want %q", cut(p), cut(clean))
	}
	if err := register(new(http.ServeMux), p, none); err != nil {
		for inner := err; inner != nil; inner = errors.Unwrap(inner) {
			err = inner
		}
		return fmt.Sprintf("has the path %q, which http.ServeMux refuses (%v): want one %s",
			cut(p), cut(err.Error()), wantRoute)
	}
	return ""
}
