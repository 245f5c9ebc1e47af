package sdks

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/go-resty/resty/v2"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

// restyPolicy bounds the time until the response of an attempt begins. resty's
// SetTimeout would bound all attempts and waits together.
func restyPolicy() httpretry.Policy { return httpretry.Policy{AttemptTimeout: 10 * time.Second} }

// newResty returns a client whose transport retries. Set a proxy or TLS in
// httpretry.Config.Base. resty's methods for them need its own transport, and
// only log an error otherwise.
func newResty(s setup) (*resty.Client, error) {
	client := resty.New().SetTransport(s.client.Transport).SetBaseURL(s.url).
		SetAuthToken("secret").SetLogger(silent{}).
		// This default is set so that readers see it.
		SetRetryCount(0)
	if s.retries {
		// Without a condition, resty retries errors only.
		client.SetRetryCount(2).AddRetryCondition(
			func(r *resty.Response, _ error) bool { return r.IsError() })
	}
	return client, nil
}

// silent is a logger without output.
type silent struct{}

func (silent) Errorf(string, ...any) {}
func (silent) Warnf(string, ...any)  {}
func (silent) Debugf(string, ...any) {}

func restyError(resp *resty.Response, err error) error {
	if err == nil && !resp.IsSuccess() {
		return errors.New(resp.Status())
	}
	return err
}

func restyGet(ctx context.Context, client *resty.Client) error {
	return restyError(client.R().SetContext(ctx).Get("/items/1"))
}

// restyPost returns a call whose key may be "".
func restyPost(key string) sdktest.Call[*resty.Client] {
	return func(ctx context.Context, client *resty.Client) error {
		return restyError(client.R().SetContext(ctx).SetHeader("Idempotency-Key", key).
			SetBody("{}").Post("/items"))
	}
}

func TestResty(t *testing.T) {
	suite := sdktest.Suite[*resty.Client]{
		Service: sdktest.API(map[string]string{
			"GET /items/1": `{"id":1}`, "POST /items": `{"id":2}`, "PUT /items/1/content": `{}`}),
		Client: connect(newResty),
		Policy: restyPolicy(),
		Check:  sdktest.Has("Authorization", "Bearer secret"),
	}
	suite.Failures(t, []sdktest.Call[*resty.Client]{restyGet, restyPost(""), restyPost("k")},
		map[string]sdktest.Row{
			"503":             sdktest.Once(sdktest.Answer(503, ""), 2, 1, 2),
			"409":             sdktest.Once(sdktest.Answer(409, ""), 1, 1, 2),
			"executed, reset": sdktest.Once(sdktest.Lost, 2, 1, 2),
		})
	// resty reads bodies into memory before it sends them. Its Request.Attempt
	// is always 1.
	suite.Uploads(t, 320_000, []sdktest.Fault{sdktest.Answer(503, ""), sdktest.Reset},
		func(ctx context.Context, client *resty.Client, body io.Reader) error {
			resp, err := client.R().SetContext(ctx).SetBody(body).Put("/items/1/content")
			require.NoError(t, err)
			assert.Equal(t, 1, resp.Request.Attempt)
			assert.Equal(t, 3, httpretry.Attempt(resp.RawResponse.Request.Context()))
			return restyError(resp, nil)
		})
}
