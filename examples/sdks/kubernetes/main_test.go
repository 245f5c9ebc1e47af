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

func Example() {
	main()
	// Output:
	// attempt 1: GET /api/v1/namespaces/default/configmaps/settings: 503 Service Unavailable
	// attempt 2: GET /api/v1/namespaces/default/configmaps/settings: 200 OK
	// read settings
}

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
	cfg, err := wrap(cfg, httpretry.Config{Policy: p})
	if err != nil {
		return nil, err
	}
	client, err := rest.HTTPClientFor(cfg)
	require.NoError(t, err)
	t.Cleanup(client.CloseIdleConnections)
	core, err := corev1.NewForConfigAndClient(cfg, client)
	require.NoError(t, err)
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
)

func get(ctx context.Context, c corev1.ConfigMapInterface) error {
	_, err := c.Get(ctx, "settings", metav1.GetOptions{})
	return err
}

func update(ctx context.Context, c corev1.ConfigMapInterface) error {
	_, err := c.Update(ctx, config, metav1.UpdateOptions{})
	return err
}

func TestFailures(t *testing.T) {
	forProtocols(t, func(t *testing.T, suite sdktest.Suite[corev1.ConfigMapInterface]) {
		patch := func(kind types.PatchType, data, manager string) sdktest.Call[corev1.ConfigMapInterface] {
			return func(ctx context.Context, c corev1.ConfigMapInterface) error {
				_, err := c.Patch(ctx, "settings", kind, []byte(data), metav1.PatchOptions{FieldManager: manager})
				return err
			}
		}
		remove := func(ctx context.Context, c corev1.ConfigMapInterface) error {
			return c.Delete(ctx, "settings", metav1.DeleteOptions{})
		}
		create := func(ctx context.Context, c corev1.ConfigMapInterface) error {
			_, err := c.Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "s-"}}, metav1.CreateOptions{})
			return err
		}
		calls := []sdktest.Call[corev1.ConfigMapInterface]{get, update, remove,
			patch(types.ApplyPatchType, object, "tests"), create, patch(types.JSONPatchType, `[]`, "")}
		suite.Failures(t, calls, map[string]sdktest.Row{
			"too many requests": sdktest.Once(tooMany, 2, 2, 2, 2, 2, 2),
			// client-go itself would retry this ten times.
			"unavailable":     sdktest.Once(unavailable, 2, 2, 2, 2, 1, 1),
			"executed, reset": sdktest.Once(sdktest.Lost, 2, 2, 2, 2, 1, 1),
			"a conflict":      sdktest.Once(status(409, "Conflict"), 1, 1, 1, 1, 1, 1),
		})
		// Without noRetries, client-go would retry this, too.
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
