package peers

import (
	"cmp"
	"io"
	"net/http"
	"time"
)

// naive is the loop that programs have around their own requests. It sets a new
// body in the caller's request, which an http.RoundTripper must not do.
type naive struct{ o Options }

func (n naive) RoundTrip(req *http.Request) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		resp, err := n.o.base().RoundTrip(req)
		oneShot := req.Body != nil && req.GetBody == nil
		if err == nil && resp.StatusCode < 500 || attempt == cmp.Or(n.o.Attempts, 3) || oneShot {
			return resp, err
		}
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		select {
		case <-time.After(cmp.Or(n.o.Wait, 500*time.Millisecond)):
		case <-req.Context().Done():
			return nil, req.Context().Err()
		}
		if req.GetBody != nil {
			req.Body, _ = req.GetBody()
		}
	}
}
