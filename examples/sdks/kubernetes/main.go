// Kubernetes reads and writes a ConfigMap, with the retries of httpretry in
// place of client-go's.
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
)

func policy() httpretry.Policy {
	return httpretry.Policy{
		MaxAttempts: 5,
		Classify:    classify,
		Idempotent:  idempotent,
		// A watch is safe from it: it ends with the response's header, which the
		// server sends before the first event.
		AttemptTimeout: 70 * time.Second,
	}
}

// classify takes a 429 for what it is here: turned away from the queue before
// it was executed (kubernetes.io/docs/concepts/cluster-administration, API
// Priority and Fairness), so that POSTs may be repeated too. A 409 stays final:
// a conflict is solved by who reads the object again.
func classify(resp *http.Response, err error) httpretry.Outcome {
	if err == nil && resp.StatusCode == http.StatusTooManyRequests {
		return httpretry.Unprocessed
	}
	return httpretry.Classify(resp, err)
}

// idempotent adds server-side apply, which says what is to be and not what is
// to change (kubernetes.io/docs/reference/using-api/server-side-apply).
func idempotent(req *http.Request) bool {
	apply := req.Method == http.MethodPatch && strings.HasPrefix(req.Header.Get("Content-Type"), "application/apply-patch")
	return apply || httpretry.Idempotent(req)
}

// wrap returns a copy of cfg with httpretry at work, below client-go's
// credentials: each attempt has the same token, which client-go reads again in
// time. The TLS of cfg, and with it HTTP/2, stays below.
func wrap(cfg *rest.Config, p httpretry.Policy) (*rest.Config, error) {
	if _, err := httpretry.New(httpretry.Config{Policy: p}); err != nil {
		return nil, err // Wrap's function has no error to return
	}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(base http.RoundTripper) http.RoundTripper {
		transport, _ := httpretry.New(httpretry.Config{Base: base, Policy: p, Observe: httpretry.LogEvents(slog.Default())})
		return last{transport} // without last, client-go makes 11 attempts of it
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
	// The resourceVersion makes a second copy of this fail with a 409.
	config, err = client.ConfigMaps(*namespace).Update(ctx, config, metav1.UpdateOptions{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stored", config.Name, config.Data)
}
