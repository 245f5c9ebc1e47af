package main

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

const object = `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "settings", "resourceVersion": "1"}}`

func api(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, object)
}

func status(code int, reason string, header ...string) sdktest.Fault {
	return sdktest.Answer(code, fmt.Sprintf(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d}`, reason, code),
		append([]string{"Content-Type", "application/json"}, header...)...)
}

var (
	tooMany     = status(http.StatusTooManyRequests, "TooManyRequests", "Retry-After", "0", "X-Kubernetes-Pf-Flowschema-Uid", "some")
	unavailable = status(http.StatusServiceUnavailable, "ServiceUnavailable", "Retry-After", "0")
	conflict    = status(http.StatusConflict, "Conflict")
)

// connect returns a client for a server, over HTTP/2 if the server has TLS.
func connect(t *testing.T, s *sdktest.Server, change func(*httpretry.Policy)) corev1.ConfigMapInterface {
	t.Helper()
	p := policy()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	if change != nil {
		change(&p)
	}
	cfg, err := wrap(plain(s), p)
	require.NoError(t, err)
	return configMaps(t, cfg)
}

func plain(s *sdktest.Server) *rest.Config {
	cfg := &rest.Config{Host: s.URL, BearerToken: "token", QPS: -1}
	if s.TLS != nil {
		cfg.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	}
	return cfg
}

func configMaps(t *testing.T, cfg *rest.Config) corev1.ConfigMapInterface {
	t.Helper()
	client, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	core, err := corev1.NewForConfigAndClient(cfg, client)
	require.NoError(t, err)
	return core.ConfigMaps("default")
}

// servers are the protocols of API servers.
func servers(t *testing.T, test func(*testing.T, func(http.HandlerFunc, ...sdktest.Fault) *sdktest.Server)) {
	t.Run("HTTP/1", func(t *testing.T) {
		test(t, func(h http.HandlerFunc, faults ...sdktest.Fault) *sdktest.Server { return sdktest.New(t, h, faults...) })
	})
	t.Run("HTTP/2", func(t *testing.T) {
		test(t, func(h http.HandlerFunc, faults ...sdktest.Fault) *sdktest.Server {
			return sdktest.NewTLS(t, h, faults...)
		})
	})
}

func TestReadsUpdatesDeletesAndAppliesAreRetried(t *testing.T) {
	config := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings", ResourceVersion: "1"}}
	servers(t, func(t *testing.T, serve func(http.HandlerFunc, ...sdktest.Fault) *sdktest.Server) {
		for name, call := range map[string]func(context.Context, corev1.ConfigMapInterface) error{
			"get": func(ctx context.Context, c corev1.ConfigMapInterface) error {
				_, err := c.Get(ctx, "settings", metav1.GetOptions{})
				return err
			},
			"update": func(ctx context.Context, c corev1.ConfigMapInterface) error {
				_, err := c.Update(ctx, config, metav1.UpdateOptions{})
				return err
			},
			"delete": func(ctx context.Context, c corev1.ConfigMapInterface) error {
				return c.Delete(ctx, "settings", metav1.DeleteOptions{})
			},
			"apply": func(ctx context.Context, c corev1.ConfigMapInterface) error {
				_, err := c.Patch(ctx, "settings", types.ApplyPatchType, []byte(object), metav1.PatchOptions{FieldManager: "tests"})
				return err
			},
		} {
			t.Run(name, func(t *testing.T) {
				s := serve(api, sdktest.Reset(), tooMany, unavailable)
				require.NoError(t, call(t.Context(), connect(t, s, nil)), s.Summary())
				requests := s.Requests()
				require.Len(t, requests, 4, s.Summary())
				for i, r := range requests {
					assert.Equal(t, "Bearer token", r.Header.Get("Authorization"))
					assert.Equal(t, string(requests[0].Content), string(r.Content))
					assert.Equal(t, []string{"", "1", "2", "3"}[i], r.Header.Get("Retry-Attempt"))
				}
			})
		}
	})
}

func TestUnsafeRequestsAreSentOnce(t *testing.T) {
	servers(t, func(t *testing.T, serve func(http.HandlerFunc, ...sdktest.Fault) *sdktest.Server) {
		create := func(s *sdktest.Server) error {
			_, err := connect(t, s, nil).Create(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "settings-"}}, metav1.CreateOptions{})
			return err
		}
		s := serve(api, sdktest.Lost())
		require.Error(t, create(s))
		assert.Len(t, s.Requests(), 1, s.Summary())
		assert.Equal(t, 1, s.Executed(http.MethodPost))

		// client-go itself would retry this ten times.
		s = serve(api, unavailable)
		assert.True(t, apierrors.IsServiceUnavailable(create(s)))
		assert.Len(t, s.Requests(), 1, s.Summary())

		s = serve(api, tooMany)
		require.NoError(t, create(s), "it was turned away")
		assert.Len(t, s.Requests(), 2, s.Summary())

		s = serve(api, sdktest.Lost())
		_, err := connect(t, s, nil).Patch(t.Context(), "settings", types.JSONPatchType, []byte(`[]`), metav1.PatchOptions{})
		require.Error(t, err)
		assert.Equal(t, 1, s.Executed(http.MethodPatch))
		assert.Len(t, s.Requests(), 1, s.Summary())

		s = serve(api, conflict)
		_, err = connect(t, s, nil).Update(t.Context(), &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings"}}, metav1.UpdateOptions{})
		assert.True(t, apierrors.IsConflict(err), "%v", err)
		assert.Len(t, s.Requests(), 1, s.Summary())
	})
}

// A watch is retried until it has a response, which AttemptTimeout does not
// end.
func TestWatchIsNotCut(t *testing.T) {
	t.Parallel() // it waits more than it works
	const timeout = 3 * time.Second
	servers(t, func(t *testing.T, serve func(http.HandlerFunc, ...sdktest.Fault) *sdktest.Server) {
		s := serve(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(timeout)
			for range 3 {
				fmt.Fprintf(w, `{"type": "MODIFIED", "object": %s}`+"\n", object)
				_ = http.NewResponseController(w).Flush()
			}
		}, sdktest.Reset(), tooMany)
		watch, err := connect(t, s, func(p *httpretry.Policy) { p.AttemptTimeout = timeout }).Watch(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		defer watch.Stop()
		events := 0
		for event := range watch.ResultChan() {
			assert.Equal(t, "settings", event.Object.(*v1.ConfigMap).Name)
			events++
		}
		assert.Equal(t, 3, events)
		assert.Len(t, s.Requests(), 3, s.Summary())
	})
}

// Without noRetries, attempts multiply.
func TestRetriesMultiply(t *testing.T) {
	two := func(p *httpretry.Policy) { p.MaxAttempts, p.Budget = 2, httpretry.Unlimited{} }
	get := func(c corev1.ConfigMapInterface) error {
		_, err := c.Get(t.Context(), "settings", metav1.GetOptions{})
		return err
	}

	s := sdktest.New(t, http.HandlerFunc(api), slices.Repeat([]sdktest.Fault{tooMany}, 50)...)
	err := get(connect(t, s, two))
	assert.True(t, apierrors.IsTooManyRequests(err), "%v", err)
	assert.Len(t, s.Requests(), 2)

	s = sdktest.New(t, http.HandlerFunc(api), slices.Repeat([]sdktest.Fault{tooMany}, 50)...)
	cfg := plain(s)
	cfg.Wrap(func(base http.RoundTripper) http.RoundTripper {
		transport, err := httpretry.New(httpretry.Config{Base: base, Policy: httpretry.Policy{
			MaxAttempts: 2, Backoff: strategies.Constant{Wait: time.Millisecond}, Budget: httpretry.Unlimited{},
		}})
		require.NoError(t, err)
		return transport
	})
	require.Error(t, get(configMaps(t, cfg)))
	assert.Len(t, s.Requests(), 22)

	s = sdktest.New(t, http.HandlerFunc(api), slices.Repeat([]sdktest.Fault{sdktest.Reset()}, 50)...)
	err = get(connect(t, s, two))
	var failure *httpretry.Error
	require.True(t, errors.As(err, &failure), "%v", err)
	assert.Equal(t, 2, failure.Attempts)
	assert.Len(t, s.Requests(), 2)
}

func TestErrorOfACanceledContextIsStillOne(t *testing.T) {
	s := &sdktest.Server{Server: httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err := connect(t, s, nil).Get(ctx, "settings", metav1.GetOptions{})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}
