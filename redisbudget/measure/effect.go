package main

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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

// flaky fails at random.
type flaky struct{ attempts atomic.Int64 }

func (f *flaky) RoundTrip(req *http.Request) (*http.Response, error) {
	f.attempts.Add(1)
	time.Sleep(50 * time.Millisecond)
	resp := &http.Response{StatusCode: 200, ProtoMajor: 1, Header: http.Header{}, Body: http.NoBody, Request: req}
	if rand.Float64() < 0.3 {
		resp.StatusCode = http.StatusServiceUnavailable
	}
	return resp, nil
}

// measureFailures prints how many requests succeed if 30 % of attempts fail. As
// in the simulations of the core, ten processes send five requests a second
// each. They are in this process here, each with its own transport and budget.
func measureFailures(out io.Writer, client redis.UniversalClient, length time.Duration) error {
	var lines [2]string
	var errs [2]error
	var wg sync.WaitGroup
	for i, name := range []string{"local budgets", "a shared budget"} {
		wg.Go(func() {
			lines[i], errs[i] = successes(client, length, i == 1)
			lines[i] = fmt.Sprintf("30 %% random failures, 10 processes, %s: %s", name, lines[i])
		})
	}
	wg.Wait()
	fmt.Fprintf(out, "%s\n%s\n", lines[0], lines[1])
	return errors.Join(errs[:]...)
}

func successes(client redis.UniversalClient, length time.Duration, shared bool) (string, error) {
	host := new(flaky)
	var requests, ok atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range 10 {
		var policy httpretry.Policy
		if shared {
			// With another Timeout, retries that succeed would seem older.
			b, err := newBudget(client, redisbudget.Config{}, nil)
			if err != nil {
				return "", err
			}
			defer b.Close()
			policy.Budget = b
		}
		transport, err := httpretry.New(httpretry.Config{Base: host, Policy: policy})
		if err != nil {
			return "", err
		}
		wg.Go(func() {
			for time.Since(began) < length {
				time.Sleep(time.Duration(rand.ExpFloat64() * float64(time.Second) / 5))
				wg.Go(func() {
					requests.Add(1)
					if get(transport, target) == http.StatusOK {
						ok.Add(1)
					}
				})
			}
		})
	}
	wg.Wait()
	return fmt.Sprintf("%.1f %% of requests succeed, load %.2f", 100*float64(ok.Load())/float64(requests.Load()),
		float64(host.attempts.Load())/float64(requests.Load())), nil
}

// get returns the status of a response, or 0.
func get(transport http.RoundTripper, url string) int {
	req, err := http.NewRequest(http.MethodGet, url, nil)
	if err != nil {
		return 0
	}
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return 0
	}
	_ = resp.Body.Close() // there is none
	return resp.StatusCode
}

// The environment of a short-lived process.
const (
	serverEnv    = "MEASURE_SERVER"
	redisEnv     = "MEASURE_REDIS" // empty: local budgets
	spaceEnv     = "MEASURE_NAMESPACE"
	requestsEnv  = "MEASURE_REQUESTS"
	roundTripEnv = "MEASURE_ROUND_TRIP" // to Redis, in addition
)

// shortLived are short-lived processes, which are processes of the system.
type shortLived struct {
	redisAddr           string // "": local budgets
	namespace           string
	roundTrip           time.Duration
	processes, requests int
}

// measureOutage prints the load on a host that is down: the attempts per
// request of short-lived processes.
func measureOutage(out io.Writer, addr string, processes int) error {
	for _, requests := range []int{1, 3} {
		for _, redisAddr := range []string{"", addr} {
			name := "local budgets"
			if redisAddr != "" {
				name = "a shared budget"
			}
			attempts, local, err := measureShortLived(shortLived{
				redisAddr: redisAddr, namespace: strconv.Itoa(requests), processes: processes, requests: requests,
			})
			if err != nil {
				return err
			}
			fmt.Fprintf(out, "outage, %d processes of %d requests, %s: load %.3f, %d decisions without Redis\n",
				processes, requests, name, float64(attempts)/float64(processes*requests), local)
		}
	}
	return nil
}

// measureShortLived runs s with a host that is down. It returns how many
// attempts the host got, and how often a local budget decided although there is
// a shared one.
func measureShortLived(s shortLived) (attempts, local int64, err error) {
	var count atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		count.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	local, err = s.run(server.URL)
	return count.Load(), local, err
}

// run runs the processes, four at a time.
func (s shortLived) run(url string) (local int64, err error) {
	env := append(os.Environ(),
		serverEnv+"="+url, redisEnv+"="+s.redisAddr, spaceEnv+"="+s.namespace,
		requestsEnv+"="+strconv.Itoa(s.requests), roundTripEnv+"="+s.roundTrip.String())
	var mu sync.Mutex
	var sum atomic.Int64
	var wg sync.WaitGroup
	todo := make(chan struct{}, s.processes)
	for range s.processes {
		todo <- struct{}{}
	}
	close(todo)
	for range 4 {
		wg.Go(func() {
			for range todo {
				cmd := exec.Command(os.Args[0])
				cmd.Env = env
				cmd.Stderr = os.Stderr
				text, failed := cmd.Output()
				n, bad := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
				sum.Add(n)
				if problem := errors.Join(failed, bad); problem != nil {
					mu.Lock()
					err = problem
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return sum.Load(), err
}

// beShortLived makes requests, and prints how often a local budget decided.
func beShortLived() {
	policy := httpretry.Policy{Backoff: strategies.Constant{Wait: time.Millisecond}}
	var c counts
	if addr := os.Getenv(redisEnv); addr != "" {
		roundTrip, err := time.ParseDuration(os.Getenv(roundTripEnv))
		if err != nil {
			panic(err) // it is a duration
		}
		client := redis.NewClient(&redis.Options{Addr: addr, Dialer: dialFar(roundTrip)})
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
