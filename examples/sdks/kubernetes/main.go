// Kubernetes reads and writes a ConfigMap. httpretry retries instead of
// client-go.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/seed421102f4/httpretry"
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
func wrap(cfg *rest.Config, p httpretry.Policy) (*rest.Config, error) {
	// The function for Wrap cannot return an error.
	if _, err := httpretry.New(httpretry.Config{Policy: p}); err != nil {
		return nil, err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(base http.RoundTripper) http.RoundTripper {
		transport, _ := httpretry.New(httpretry.Config{
			Base: base, Policy: p, Observe: httpretry.LogEvents(slog.Default()),
		})
		// Without noRetries, client-go makes up to 11 attempts.
		return noRetries{transport}
	})
	return cfg, nil
}

func main() {
	kubeconfig := flag.String("kubeconfig", clientcmd.RecommendedHomeFile, "`path` of the configuration")
	namespace := flag.String("namespace", "default", "`name` of the namespace")
	name := flag.String("configmap", "example", "`name` of a ConfigMap to count in")
	flag.Parse()
	cfg, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		log.Fatal(err)
	}
	if cfg, err = wrap(cfg, policy()); err != nil {
		log.Fatal(err)
	}
	client, err := corev1.NewForConfig(cfg)
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	config, err := client.ConfigMaps(*namespace).Get(ctx, *name, metav1.GetOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("read", config.Name, config.Data)
	config.Data = map[string]string{"seen": time.Now().Format(time.RFC3339)}
	// Because of its resourceVersion, a second copy of this fails with a 409.
	config, err = client.ConfigMaps(*namespace).Update(ctx, config, metav1.UpdateOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stored", config.Name, config.Data)
}
