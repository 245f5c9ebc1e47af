package test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/retrytest"
)

// net/http sends the request's body into the tunnel that CONNECT opens, and the
// response's body comes from it. Neither ends before the other does, however
// long that takes.
func TestConnect(t *testing.T) {
	inVirtualTime(t, func(t *testing.T, start func(http.HandlerFunc) *http.Transport) {
		base := start(func(w http.ResponseWriter, r *http.Request) {
			control := http.NewResponseController(w)
			w.WriteHeader(http.StatusOK)
			assert.NoError(t, control.Flush())
			if r.ProtoMajor == 2 { // over HTTP/1, only a hijacked connection has it
				sent, err := io.ReadAll(r.Body)
				assert.NoError(t, err)
				assert.Equal(t, "payload", string(sent))
			}
			time.Sleep(time.Hour)
			_, _ = io.WriteString(w, "answer")
		})
		reader, writer := io.Pipe()
		resp, err := retrytest.New(t, httpretry.Config{Base: base, Policy: retrytest.RetryEvery(0)}).
			RoundTrip(retrytest.Streamed(t, http.MethodConnect, "http://a.test/", reader))
		require.NoError(t, err)
		time.Sleep(time.Minute)
		_, err = io.WriteString(writer, "payload")
		require.NoError(t, err)
		require.NoError(t, writer.Close())
		assert.Equal(t, "answer", retrytest.ReadBody(t, resp))
	})
}
