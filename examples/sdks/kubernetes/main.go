// Kubernetes reads a ConfigMap. The first request fails, and httpretry retries
// instead of client-go.
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/flaky"
	"github.com/seed421102f4/httpretry/policies"
)

// policy retries a 429 of any request, a POST included, since the API server
// refuses it before it processes the request
// (kubernetes.io/docs/concepts/cluster-administration, API Priority and
// Fairness). A 409 is final, because the program has to read the object again
// to solve a conflict.
func policy() httpretry.Policy {
	p := httpretry.Policy{
		MaxAttempts: 5,
		Idempotent:  idempotent,
		// This does not end a watch. It limits the time until the response
		// header, which the server sends before the first event.
		AttemptTimeout: 70 * time.Second,
	}
	return policies.Statuses(p, httpretry.Unprocessed, http.StatusTooManyRequests)
}

// idempotent accepts server-side apply as well. It sends the intended state,
// not a change (kubernetes.io/docs/reference/using-api/server-side-apply).
func idempotent(req *http.Request) bool {
	apply := req.Method == http.MethodPatch &&
		strings.HasPrefix(req.Header.Get("Content-Type"), "application/apply-patch")
	return apply || httpretry.Idempotent(req)
}

// wrap returns a copy of cfg that uses httpretry below client-go's credentials.
// All attempts have the same token, which client-go renews in time. The TLS
// configuration of cfg, and HTTP/2 with it, is in Base.
func wrap(cfg *rest.Config, retries httpretry.Config) (*rest.Config, error) {
	// The function for Wrap cannot return an error.
	if _, err := httpretry.New(retries); err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(base http.RoundTripper) http.RoundTripper {
		retries.Base = base
		transport, _ := httpretry.New(retries)
		// Without noRetries, client-go makes up to 11 attempts.
		return noRetries{transport}
	})
	return cfg, nil
}

func main() {
	server := flaky.Server(`{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"settings"}}`)
	defer server.Close()
	// Elsewhere, this is the result of clientcmd or rest.InClusterConfig.
	cfg, err := wrap(&rest.Config{Host: server.URL},
		httpretry.Config{Policy: policy(), Observe: flaky.Print})
	if err != nil {
		log.Fatal(err)
	}
	client, err := corev1.NewForConfig(cfg)
	if err != nil {
		log.Fatal(err)
	}
	config, err := client.ConfigMaps("default").Get(context.Background(), "settings", metav1.GetOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("read", config.Name)
}
