package main

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
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
)

const object = `{"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "settings", "resourceVersion": "1"}}`

// forProtocols runs a test over HTTP/1 and over HTTP/2, as API servers have it.
func forProtocols(t *testing.T, test func(*testing.T, sdktest.Suite[corev1.ConfigMapInterface])) {
	suite := sdktest.Suite[corev1.ConfigMapInterface]{
		Service: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, object)
		},
		Client: connect,
		Policy: policy(),
		Check:  sdktest.Has("Authorization", "Bearer token"),
	}
	t.Run("HTTP/1", func(t *testing.T) { test(t, suite) })
	suite.TLS = true
	t.Run("HTTP/2", func(t *testing.T) { test(t, suite) })
}

func connect(t testing.TB, s *sdktest.Server, p httpretry.Policy) (corev1.ConfigMapInterface, error) {
	cfg := &rest.Config{Host: s.URL, BearerToken: "token", QPS: -1}
	if s.TLS != nil {
		cfg.CAData = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	}
	cfg, err := wrap(cfg, p)
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, err
	}
	t.Cleanup(client.CloseIdleConnections)
	core, err := corev1.NewForConfigAndClient(cfg, client)
	if err != nil {
		return nil, err
	}
	return core.ConfigMaps("default"), nil
}

func status(code int, reason string, header ...string) sdktest.Fault {
	return sdktest.Answer(code, fmt.Sprintf(`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": %q, "code": %d}`, reason, code),
		append([]string{"Content-Type", "application/json"}, header...)...)
}

var (
	tooMany     = status(429, "TooManyRequests", "Retry-After", "0", "X-Kubernetes-Pf-Flowschema-Uid", "some")
	unavailable = status(503, "ServiceUnavailable", "Retry-After", "0")
	config      = &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "settings", ResourceVersion: "1"}}
	unnamed     = &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "settings-"}}
)

func get(ctx context.Context, c corev1.ConfigMapInterface) error {
	_, err := c.Get(ctx, "settings", metav1.GetOptions{})
	return err
}

func update(ctx context.Context, c corev1.ConfigMapInterface) error {
	_, err := c.Update(ctx, config, metav1.UpdateOptions{})
	return err
}

func remove(ctx context.Context, c corev1.ConfigMapInterface) error {
	return c.Delete(ctx, "settings", metav1.DeleteOptions{})
}

func apply(ctx context.Context, c corev1.ConfigMapInterface) error {
	_, err := c.Patch(ctx, "settings", types.ApplyPatchType, []byte(object), metav1.PatchOptions{FieldManager: "tests"})
	return err
}

func create(ctx context.Context, c corev1.ConfigMapInterface) error {
	_, err := c.Create(ctx, unnamed, metav1.CreateOptions{})
	return err
}

func patch(ctx context.Context, c corev1.ConfigMapInterface) error {
	_, err := c.Patch(ctx, "settings", types.JSONPatchType, []byte(`[]`), metav1.PatchOptions{})
	return err
}

func TestFailures(t *testing.T) {
	forProtocols(t, func(t *testing.T, suite sdktest.Suite[corev1.ConfigMapInterface]) {
		calls := []sdktest.Call[corev1.ConfigMapInterface]{get, update, remove, apply, create, patch}
		suite.Failures(t, calls, map[string]sdktest.Row{
			"too many requests": sdktest.Once(tooMany, 2, 2, 2, 2, 2, 2),
			// client-go itself would retry this ten times.
			"unavailable":     sdktest.Once(unavailable, 2, 2, 2, 2, 1, 1),
			"reset":           sdktest.Once(sdktest.Reset, 2, 2, 2, 2, 1, 1),
			"executed, reset": sdktest.Once(sdktest.Lost, 2, 2, 2, 2, 1, 1),
			"a conflict":      sdktest.Once(status(409, "Conflict"), 1, 1, 1, 1, 1, 1),
		})
	})
}

// Without noRetries, client-go would retry these, too.
func TestDown(t *testing.T) {
	forProtocols(t, func(t *testing.T, suite sdktest.Suite[corev1.ConfigMapInterface]) {
		suite.Down(t, unavailable, get, 5)
		suite.Down(t, sdktest.Reset, get, 5)
	})
}

// noRetries leaves the errors as they are for the program.
func TestErrors(t *testing.T) {
	forProtocols(t, func(t *testing.T, suite sdktest.Suite[corev1.ConfigMapInterface]) {
		_, client := suite.Start(t, status(409, "Conflict"))
		assert.True(t, apierrors.IsConflict(update(t.Context(), client)))

		_, client = suite.Start(t, sdktest.Always(tooMany)...)
		assert.True(t, apierrors.IsTooManyRequests(get(t.Context(), client)))

		_, client = suite.Start(t, sdktest.Always(sdktest.Reset)...)
		failure, ok := errors.AsType[*httpretry.Error](get(t.Context(), client))
		require.True(t, ok)
		assert.Equal(t, 5, failure.Attempts)

		_, client = suite.Start(t, func(_ *sdktest.Server, _ http.ResponseWriter, r *sdktest.Request) {
			<-r.Context().Done()
		})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		assert.ErrorIs(t, get(ctx, client), context.DeadlineExceeded)
	})
}

// A watch is retried until it has a response, which AttemptTimeout does not
// end.
func TestWatchIsNotCut(t *testing.T) {
	t.Parallel() // it waits more than it works
	const timeout = 3 * time.Second
	forProtocols(t, func(t *testing.T, suite sdktest.Suite[corev1.ConfigMapInterface]) {
		suite.Policy.AttemptTimeout = timeout
		suite.Service = func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_ = http.NewResponseController(w).Flush()
			time.Sleep(timeout)
			for range 3 {
				fmt.Fprintf(w, `{"type": "MODIFIED", "object": %s}`+"\n", object)
				_ = http.NewResponseController(w).Flush()
			}
		}
		server, client := suite.Start(t, sdktest.Reset, tooMany)
		watch, err := client.Watch(t.Context(), metav1.ListOptions{})
		require.NoError(t, err)
		defer watch.Stop()
		events := 0
		for event := range watch.ResultChan() {
			assert.Equal(t, "settings", event.Object.(*v1.ConfigMap).Name)
			events++
		}
		assert.Equal(t, 3, events)
		assert.Len(t, server.Requests(), 3, server.Summary())
	})
}
