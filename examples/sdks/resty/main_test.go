package main

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/go-resty/resty/v2"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

// silent is a logger without output.
type silent struct{}

func (silent) Errorf(string, ...any) {}
func (silent) Warnf(string, ...any)  {}
func (silent) Debugf(string, ...any) {}

var suite = sdktest.Suite[*resty.Client]{
	Service: sdktest.API(map[string]string{
		"GET /items/1":         `{"id":1,"name":"One"}`,
		"POST /items":          `{"id":2,"name":"Two"}`,
		"PUT /items/1/content": `{}`,
	}),
	Client: func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (*resty.Client, error) {
		client, err := newClient(s.URL, "secret", p)
		if err == nil {
			client.SetLogger(silent{})
		}
		return client, err
	},
	Policy: policy(),
	Check:  sdktest.Has("Authorization", "Bearer secret"),
}

func failure(resp *resty.Response, err error) error {
	if err == nil && !resp.IsSuccess() {
		return errors.New(resp.Status())
	}
	return err
}

func get(ctx context.Context, client *resty.Client) error {
	return failure(client.R().SetContext(ctx).Get("/items/1"))
}

func post(ctx context.Context, client *resty.Client) error {
	return failure(client.R().SetContext(ctx).SetBody(item{Name: "Two"}).Post("/items"))
}

func postWithKey(ctx context.Context, client *resty.Client) error {
	return failure(client.R().SetContext(ctx).SetHeader("Idempotency-Key", "k").
		SetBody(item{Name: "Two"}).Post("/items"))
}

func TestRun(t *testing.T) {
	suite.Run(t, sdktest.Answer(503, ""), "GET /items/1: 200 OK after 2 attempts: \"One\"\n"+
		"POST /items: 200 OK after 2 attempts: item 2\n",
		func(ctx context.Context, client *resty.Client, out io.Writer) error {
			return run(ctx, client, "Two", "k", out)
		})
}

func TestFailures(t *testing.T) {
	suite.Failures(t, []sdktest.Call[*resty.Client]{get, post, postWithKey}, map[string]sdktest.Row{
		"503":             sdktest.Once(sdktest.Answer(503, ""), 2, 1, 2),
		"429":             sdktest.Once(sdktest.Answer(429, "", "Retry-After", "0"), 2, 1, 2),
		"429 for an age":  sdktest.Once(sdktest.Answer(429, "", "Retry-After", "3600"), 1, 1, 1),
		"409":             sdktest.Once(sdktest.Answer(409, ""), 1, 1, 2),
		"404":             sdktest.Once(sdktest.Answer(404, ""), 1, 1, 1),
		"reset":           sdktest.Once(sdktest.Reset, 2, 1, 2),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 1, 2),
	})
}

func TestDown(t *testing.T) { suite.Down(t, sdktest.Reset, get, 3) }

// resty reads bodies into memory before it sends them.
func TestUpload(t *testing.T) {
	content := sdktest.Random(320_000)
	for name, body := range sdktest.Bodies(t, content) {
		t.Run(name, func(t *testing.T) {
			server, client := suite.Start(t, sdktest.Answer(503, ""), sdktest.Reset)
			require.NoError(t, failure(client.R().SetContext(t.Context()).SetBody(body).Put("/items/1/content")))
			server.Whole(t, 3, content, nil)
		})
	}
}
