package recipes_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"go.uber.org/zap"
	"go.uber.org/zap/exp/zapslog"
	"go.uber.org/zap/zapcore"

	"github.com/seed421102f4/httpretry"
)

// newSampled returns a logger for w. Of the lines of a second that have the
// same level and message, it writes the first ten, and then one in a hundred.
func newSampled(w io.Writer) *slog.Logger {
	core := zapcore.NewCore(zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig()),
		zapcore.Lock(zapcore.AddSync(w)), zapcore.InfoLevel)
	return slog.New(zapslog.NewHandler(
		zapcore.NewSamplerWithOptions(core, time.Second, 10, 100)))
}

// TestSampled checks that 1,000 failed requests in a second are 19 lines, and
// that a line with another message is among them.
func TestSampled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		logger := newSampled(&logged)
		client := newClient(t, httpretry.Config{
			Base: play(503), Observe: httpretry.LogEvents(logger),
		})
		for range 1000 {
			assert.Equal(t, 503, status(t, client, request(t, "POST", "data")))
			time.Sleep(time.Millisecond)
		}
		logger.Warn("another message")
		assert.Equal(t, 19, strings.Count(logged.String(), "gave up on request"))
		assert.Contains(t, logged.String(), "another message")
		assert.Contains(t, logged.String(), `"reason":"not_idempotent"`)
	})
}

type requestIDKey struct{}

// withRequestID is a middleware. Lines that are logged in the context of a
// request, or of one that it causes, can be joined by its ID.
func withRequestID(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := context.WithValue(r.Context(), requestIDKey{}, uuid.NewString())
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// joined adds the request's ID to each line.
type joined struct{ slog.Handler }

func (h joined) Handle(ctx context.Context, line slog.Record) error {
	if id, ok := ctx.Value(requestIDKey{}).(string); ok {
		line.AddAttrs(slog.String("request_id", id))
	}
	return h.Handler.Handle(ctx, line)
}

func (h joined) WithAttrs(attrs []slog.Attr) slog.Handler {
	return joined{h.Handler.WithAttrs(attrs)}
}

func (h joined) WithGroup(name string) slog.Handler { return joined{h.Handler.WithGroup(name)} }

// TestJoined checks that the lines of each of two requests have one ID, and the
// two have different ones.
func TestJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var logged strings.Builder
		logger := slog.New(joined{slog.NewTextHandler(&logged, nil)})
		client := newClient(t, httpretry.Config{
			Base: play(503), Observe: httpretry.LogEvents(logger.With("service", "a")),
		})
		handler := withRequestID(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			assert.Equal(t, 503, status(t, client, request(t, "GET", "").WithContext(r.Context())))
		}))
		ids := map[string]int{}
		for range 2 {
			handler.ServeHTTP(nil, request(t, "GET", ""))
		}
		for line := range strings.Lines(logged.String()) {
			_, id, found := strings.Cut(strings.TrimSpace(line), "request_id=")
			assert.True(t, found, line)
			ids[id]++
		}
		assert.Len(t, ids, 2)
		for id, lines := range ids {
			assert.Equal(t, 3, lines, id) // two retries, and the end
		}
	})
}
