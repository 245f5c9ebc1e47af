package recipes_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/strategies"
)

// newRouter returns a service whose retries do not multiply with those of its
// callers.
func newRouter(item http.HandlerFunc) http.Handler {
	router := chi.NewRouter()
	router.Use(httpretry.Middleware)
	router.Get("/items/{id}", item)
	router.Route("/partners", func(partners chi.Router) {
		// These callers count their retries in a header of their own.
		counted := httpretry.MiddlewareConfig{Headers: []string{"X-Retry-Count"}}
		partners.Use(counted.Wrap)
		partners.Get("/items/{id}", item)
	})
	return router
}

// TestRouter counts the requests that a service sends to a server that is down,
// for an inbound request that is a retry and for one that is not.
func TestRouter(t *testing.T) {
	for _, tt := range []struct {
		path, header, value string
		want                int
	}{
		{"/items/7", "", "", 3},
		{"/items/7", "Retry-Attempt", "1", 1},
		{"/items/7", "X-Retry-Count", "1", 3},
		{"/partners/items/7", "", "", 3},
		{"/partners/items/7", "Retry-Attempt", "1", 1},
		{"/partners/items/7", "X-Retry-Count", "1", 1},
		{"/partners/items/7", "X-Retry-Count", "0", 3},
	} {
		down := play(http.StatusServiceUnavailable)
		client := newClient(t, httpretry.Config{Base: down, Policy: httpretry.Policy{
			Backoff: strategies.Constant{}}})
		service := newRouter(func(w http.ResponseWriter, r *http.Request) {
			url := "https://storage.example.com/" + chi.URLParam(r, "id")
			req, err := http.NewRequestWithContext(r.Context(), http.MethodGet, url, nil)
			require.NoError(t, err)
			assert.Equal(t, http.StatusServiceUnavailable, status(t, client, req))
		})
		req := httptest.NewRequest(http.MethodGet, tt.path, nil)
		if tt.header != "" {
			req.Header.Set(tt.header, tt.value)
		}
		service.ServeHTTP(httptest.NewRecorder(), req)
		assert.Equal(t, tt.want, down.count(), "%s, %s: %s", tt.path, tt.header, tt.value)
	}
}
