package redisbudget_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/redisbudget"
)

// childEnv is set in processes that a test starts. It has the address of Redis.
const childEnv = "REDISBUDGET_CHILD"

func TestMain(m *testing.M) {
	if addr := os.Getenv(childEnv); addr != "" {
		if err := beChild(addr, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

const (
	childGoroutines = 20
	healthy         = 3 * time.Second // one of three attempts fails
	outage          = 2 * time.Second // all fail

	fleetWindow   = time.Minute
	fleetInterval = 50 * time.Millisecond
	fleetTimeout  = 10 * time.Second // fifty processes make a machine busy
)

// records are the times of a process's successes and retries, in nanoseconds.
type records struct {
	Successes []int64
	Helped    []int64 // of the successes, those of retries
	Wasted    []int64 // retries that did not succeed
	Local     int     // decisions of the local budget
}

// beChild runs a process of the fleet, and writes its records.
func beChild(addr string, in io.Reader, out io.Writer) error {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	var mu sync.Mutex
	var all records
	budget, err := redisbudget.New(redisbudget.Config{
		Client: client, Timeout: fleetTimeout, Window: fleetWindow, FlushInterval: fleetInterval,
		Observe: func(_ context.Context, d redisbudget.Decision) {
			if !d.Shared {
				mu.Lock()
				all.Local++
				mu.Unlock()
			}
		},
	})
	if err != nil {
		return err
	}
	// The processes begin together.
	fmt.Fprintln(out, "ready")
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		return err
	}
	began := time.Now()
	var wg sync.WaitGroup
	for range childGoroutines {
		wg.Go(func() {
			var own records
			for time.Since(began) < healthy+outage {
				own.request(budget, time.Since(began) < healthy)
				time.Sleep(rand.N(200 * time.Millisecond))
			}
			mu.Lock()
			defer mu.Unlock()
			all.Successes = append(all.Successes, own.Successes...)
			all.Wasted = append(all.Wasted, own.Wasted...)
			all.Helped = append(all.Helped, own.Helped...)
		})
	}
	wg.Wait()
	if err := budget.Close(); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(all)
}

// request calls b as a transport does for a request with one retry.
func (r *records) request(b *redisbudget.Budget, isHealthy bool) {
	fails := func() bool { return !isHealthy || rand.IntN(3) == 0 }
	charged := fails()
	if charged {
		if !b.Withdraw(context.Background(), failed(target)) {
			return
		}
		at := time.Now().UnixNano()
		if fails() {
			r.Wasted = append(r.Wasted, at)
			return
		}
		r.Helped = append(r.Helped, time.Now().UnixNano())
	}
	r.Successes = append(r.Successes, time.Now().UnixNano())
	if charged {
		succeedAfter(b, failed(target))
	} else {
		succeed(b, target, 1)
	}
}

// A child is a process of the fleet.
type child struct {
	*exec.Cmd
	in  io.Writer
	out *bufio.Reader
}

// startChildren starts processes and returns when all are ready.
func startChildren(t *testing.T, n int, addr string) (children []child) {
	t.Helper()
	for range n {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+addr)
		cmd.Stderr = os.Stderr
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill() // if it has not ended
			_ = cmd.Wait()
		})
		children = append(children, child{cmd, in, bufio.NewReader(out)})
	}
	for _, c := range children {
		line, err := c.out.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "ready\n", line)
	}
	return children
}

// run lets processes begin, and returns their records.
func run(t *testing.T, children []child) (all records) {
	t.Helper()
	for _, c := range children {
		_, err := io.WriteString(c.in, "go\n")
		require.NoError(t, err)
	}
	for _, c := range children {
		var r records
		require.NoError(t, json.NewDecoder(c.out).Decode(&r))
		all.Successes = append(all.Successes, r.Successes...)
		all.Wasted = append(all.Wasted, r.Wasted...)
		all.Helped = append(all.Helped, r.Helped...)
		all.Local += r.Local
	}
	slices.Sort(all.Successes)
	slices.Sort(all.Helped)
	slices.Sort(all.Wasted)
	return all
}

func TestFiftyProcessesKeepTheLaw(t *testing.T) {
	addr := freeAddr(t)
	startRedis(t, addr)
	all := run(t, startChildren(t, 50, addr))
	t.Logf("%d successes, %d of retries, %d retries wasted", len(all.Successes), len(all.Helped), len(all.Wasted))
	require.Zero(t, all.Local, "decisions of local budgets")
	require.NotEmpty(t, all.Wasted)

	// Between the charge and the retry may be as long as a lease, and between
	// the retry and its refund in Redis an interval and a round trip.
	const before = fleetWindow/10 + fleetInterval + fleetTimeout
	for i, from := range all.Wasted {
		first, _ := slices.BinarySearch(all.Successes, from-int64(before+fleetWindow))
		helpedFirst, _ := slices.BinarySearch(all.Helped, from-int64(before))
		last, helped := first, helpedFirst
		for j, to := range all.Wasted[i:] {
			for last < len(all.Successes) && all.Successes[last] <= to {
				last++
			}
			for helped < len(all.Helped) && all.Helped[helped] <= to {
				helped++
			}
			length := float64(time.Duration(to-from)+before) / float64(fleetWindow)
			most := 0.2*float64(last-first) + 5*(1+length) + float64(helped-helpedFirst)
			if float64(j+1) > most {
				require.Fail(t, "too many", "%d retries, at most %v are allowed", j+1, most)
			}
		}
	}
	// All of it is within one Window.
	byRatio := float64(len(all.Successes)) * 0.2
	assert.LessOrEqual(t, float64(len(all.Wasted)), (byRatio+5)*1.001+float64(len(all.Helped)))
	assert.GreaterOrEqual(t, float64(len(all.Wasted)), 0.7*(byRatio+5), "the outage uses the rest")
	end, _ := slices.BinarySearch(all.Wasted, all.Successes[len(all.Successes)-1])
	assert.LessOrEqual(t, float64(len(all.Wasted)-end), byRatio+5, "after the last success")
}
