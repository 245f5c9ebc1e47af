package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/redisbudget"
	"github.com/seed421102f4/httpretry/strategies"
)

// The environment of a short-lived process.
const (
	serverEnv   = "MEASURE_SERVER"
	redisEnv    = "MEASURE_REDIS" // empty: local budgets
	spaceEnv    = "MEASURE_NAMESPACE"
	requestsEnv = "MEASURE_REQUESTS"
)

// measureOutage prints the load on a host that is down: the attempts per
// request of short-lived processes, which are processes of the system.
func measureOutage(out io.Writer, addr string, processes int) error {
	for _, requests := range []int{1, 3} {
		for _, redisAddr := range []string{"", addr} {
			name := "local budgets"
			if redisAddr != "" {
				name = "a shared budget"
			}
			attempts, local, err := measureShortLived(redisAddr, processes, requests)
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "outage, %d processes of %d requests, %s: load %.3f, %d decisions without Redis\n",
				processes, requests, name, float64(attempts)/float64(processes*requests), local)
		}
	}
	return nil
}

// measureShortLived runs processes with a host that is down, four at a time. It
// returns how many attempts the host got, and how often a local budget decided
// although there is a shared one.
func measureShortLived(redisAddr string, processes, requests int) (attempts, local int64, err error) {
	var count, sum atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		count.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	env := append(os.Environ(), serverEnv+"="+server.URL, redisEnv+"="+redisAddr,
		spaceEnv+"="+strconv.Itoa(requests), requestsEnv+"="+strconv.Itoa(requests))
	run := func() error {
		cmd := exec.Command(os.Args[0])
		cmd.Env = env
		cmd.Stderr = os.Stderr
		text, failed := cmd.Output()
		n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		sum.Add(n)
		return errors.Join(failed, bad)
	}
	errs := make([]error, processes)
	var wg sync.WaitGroup
	for first := range 4 {
		wg.Go(func() {
			for i := first; i < processes; i += 4 {
				errs[i] = run()
			}
		})
	}
	wg.Wait()
	return count.Load(), sum.Load(), errors.Join(errs...)
}

// beShortLived makes requests, and prints how often a local budget decided.
func beShortLived() {
	policy := httpretry.Policy{Backoff: strategies.Constant{Wait: time.Millisecond}}
	var c counts
	if addr := os.Getenv(redisEnv); addr != "" {
		client := redis.NewClient(&redis.Options{Addr: addr})
		b, err := newBudget(client, redisbudget.Config{Namespace: os.Getenv(spaceEnv)}, &c)
		if err != nil {
			panic(err) // the configuration is valid
		}
		defer client.Close()
		defer b.Close()
		policy.Budget = b
	}
	transport, err := httpretry.New(httpretry.Config{Policy: policy})
	if err != nil {
		panic(err) // the configuration is valid
	}
	n, _ := strconv.Atoi(os.Getenv(requestsEnv)) // it is a number
	for range n {
		get(transport, os.Getenv(serverEnv))
	}
	fmt.Println(c.local)
}

// get sends a request. The server counts its attempts.
func get(transport http.RoundTripper, url string) {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		panic(err) // the URL is valid
	}
	if resp, err := transport.RoundTrip(req); err == nil {
		_ = resp.Body.Close() // there is none
	}
}
