// Measure prints the figures of the README: the costs of a shared budget, and
// the load that it saves. It starts a redis-server on this machine, which has
// to be installed:
//
//	go run ./measure
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed421102f4/httpretry/redisbudget"
)

const (
	target = "https://a.test"

	// patient is a Timeout with which the shared budget decides on a machine
	// that is busy with other work, too. The short-lived processes have the
	// default.
	patient = time.Second
)

func main() {
	processes := flag.Int("processes", 1000, "short-lived processes")
	flag.Parse()
	if os.Getenv(serverEnv) != "" {
		beShortLived()
		return
	}
	if err := run(os.Stdout, *processes); err != nil {
		log.Fatal(err)
	}
}

func run(out io.Writer, processes int) error {
	addr, stop, err := startRedis()
	if err != nil {
		return err
	}
	defer stop()
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	for _, measurement := range []func() error{
		func() error { return measureLatency(out, client) },
		func() error { return measureCommands(out, client) },
		func() error { return measureOutage(out, addr, processes) },
	} {
		// Each begins with a host that is not known.
		if err := client.FlushDB(context.Background()).Err(); err != nil {
			return err
		}
		if err := measurement(); err != nil {
			return err
		}
	}
	return nil
}

// startRedis starts a server with a free port of the loopback interface.
func startRedis() (addr string, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	addr = l.Addr().String()
	_, port, err := net.SplitHostPort(addr)
	if err := errors.Join(err, l.Close()); err != nil {
		return "", nil, err
	}
	cmd := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", port, "--save", "", "--appendonly", "no")
	if err := cmd.Start(); err != nil {
		return "", nil, fmt.Errorf("%w: install it with install.sh", err)
	}
	stop = func() {
		_ = cmd.Process.Kill() // it has nothing to keep
		_ = cmd.Wait()
	}
	for range 200 {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			return addr, stop, conn.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	stop()
	return "", nil, fmt.Errorf("redis-server does not listen at %s", addr)
}

// counts are decisions of each budget.
type counts struct{ shared, local int }

// newBudget returns a shared budget that counts decisions. The counts are for
// one goroutine.
func newBudget(client redis.UniversalClient, cfg redisbudget.Config, c *counts) (*redisbudget.Budget, error) {
	cfg.Client = client
	cfg.Logger = slog.New(slog.DiscardHandler) // the counts show it
	if c != nil {
		cfg.Observe = func(_ context.Context, d redisbudget.Decision) {
			if d.Shared {
				c.shared++
			} else {
				c.local++
			}
		}
	}
	return redisbudget.New(cfg)
}
