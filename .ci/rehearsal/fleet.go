// Command fleet is a program of a fleet, for rehearsal.sh, which builds it with
// several versions. With the paths of two of those programs, it runs processes
// of both as one fleet.
//
//	fleet REDIS FILE
//	fleet REDIS FILE BEFORE NEXT
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/otelretry"
	"github.com/seed421102f4/httpretry/policyfile"
	"github.com/seed421102f4/httpretry/redisbudget"
)

func main() {
	log.SetFlags(0)
	client := redis.NewClient(&redis.Options{Network: "unix", Addr: os.Args[1]})
	if len(os.Args) == 5 {
		rollOut(client, os.Args[3], os.Args[4])
		return
	}
	serve(client, os.Args[2])
}

func must[T any](v T, err error) T {
	if err != nil {
		log.Fatal("FAIL: ", err)
	}
	return v
}

// serve prints the warnings about the file, sends a request to each URL of its
// input, and prints the metrics at the end.
func serve(client *redis.Client, file string) {
	reader := sdkmetric.NewManualReader()
	cfg := otelretry.Config{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)),
		Name:          "fleet", Hosts: []string{"127.0.0.1", "localhost"},
	}
	decided := must(otelretry.ObserveBudget(cfg))
	budget := must(redisbudget.New(redisbudget.Config{
		Client: client, Namespace: "rehearsal", Lease: 1, Timeout: 10 * time.Second,
		Observe: func(ctx context.Context, d redisbudget.Decision) {
			decided(ctx, otelretry.BudgetDecision{Allowed: d.Allowed, Shared: d.Shared})
		},
	}))
	transport := must(httpretry.New(httpretry.Config{
		Base:    otelretry.NewTransport(http.DefaultTransport),
		Observe: must(otelretry.Observe(cfg)),
	}))
	must(otelretry.Origins(transport, cfg))
	warnings := []string{}
	reloader := &policyfile.Reloader{
		Path: file, Transport: transport,
		Loader: &policyfile.Loader{
			Presets:       map[string]httpretry.Policy{"fleet": {Budget: budget}},
			IgnoreUnknown: os.Getenv("STRICT") == "",
		},
		Warn: func(all []*policyfile.Error) {
			for _, w := range all {
				warnings = append(warnings, w.Path)
			}
		},
	}
	must(otelretry.PolicyFile(reloader, cfg))
	must(0, reloader.Reload())
	fmt.Println(warnings)

	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		resp, err := (&http.Client{Transport: transport}).Get(lines.Text())
		if err != nil {
			fmt.Println("error")
			continue
		}
		result := httpretry.ResultOf(resp)
		must(io.Copy(io.Discard, resp.Body))
		must(0, resp.Body.Close())
		fmt.Println(resp.StatusCode, result.Attempts, result.Reason)
	}
	must(0, lines.Err())
	must(0, budget.Close())

	var data metricdata.ResourceMetrics
	must(0, reader.Collect(context.Background(), &data))
	for _, scope := range data.ScopeMetrics {
		for _, m := range scope.Metrics {
			var points struct {
				IsMonotonic bool
				DataPoints  []struct {
					Attributes []struct{ Key, Value any }
				}
			}
			must(0, json.Unmarshal(must(json.Marshal(m.Data)), &points))
			for _, p := range points.DataPoints {
				for _, a := range p.Attributes {
					fmt.Printf("%s: %s %T %q monotonic=%t %v=%v\n",
						scope.Scope.Name, m.Name, m.Data, m.Unit, points.IsMonotonic, a.Key, a.Value)
				}
			}
		}
	}
}

// A process is one of the fleet.
type process struct {
	name    string
	in      io.WriteCloser
	out     *bufio.Scanner
	metrics map[string]bool
}

func (p *process) line() string {
	if !p.out.Scan() {
		log.Fatalf("FAIL: %s has ended", p.name)
	}
	return p.out.Text()
}

// rollOut runs two processes of each program, and checks what the rules for
// later versions promise to a fleet.
func rollOut(client *redis.Client, before, next string) {
	// A server may get the port that one of the fleet before had, whose charges
	// Redis remembers.
	must(client.FlushAll(context.Background()).Result())
	var load atomic.Int64
	down := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		load.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	failsOnce := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Retry-Attempt") == "" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	refuses := httptest.NewServer(nil)
	refuses.Close()
	// The policy of localhost has a HostBudget, whose balance is a metric.
	local := strings.Replace(failsOnce.URL, "127.0.0.1", "localhost", 1)

	var fleet []*process
	for _, name := range []string{before, next, before, next} {
		cmd := exec.Command(name, os.Args[1], os.Args[2])
		cmd.Stderr = os.Stderr
		p := &process{name, must(cmd.StdinPipe()), bufio.NewScanner(must(cmd.StdoutPipe())), map[string]bool{}}
		must(0, cmd.Start())
		want := map[string]string{before: os.Getenv("UNKNOWN_BEFORE"), next: "[]"}[name]
		if warnings := p.line(); warnings != want {
			log.Fatalf("FAIL: %s warns of the fields %s of the file, want %s", name, warnings, want)
		}
		fleet = append(fleet, p)
	}
	send := func(url, want string) {
		for _, p := range fleet {
			must(fmt.Fprintln(p.in, url))
			if got := p.line(); want != "" && got != want {
				log.Fatalf("FAIL: %s: %s, want %s", p.name, got, want)
			}
		}
	}
	send(failsOnce.URL, "200 2 success")
	send(local, "200 2 success")
	send(refuses.URL, "error")
	for range 5 {
		send(down.URL, "")
	}
	if want := int64(5*len(fleet) + 5); load.Load() != want {
		log.Fatalf("FAIL: %d attempts with the retries of all versions, want the %d of one budget of five; keys: %q",
			load.Load(), want, must(client.Keys(context.Background(), "*").Result()))
	}
	for _, p := range fleet {
		must(0, p.in.Close())
		for p.out.Scan() {
			p.metrics[p.out.Text()] = true
		}
		must(0, p.out.Err())
	}
	metrics := map[string]bool{}
	for line := range fleet[0].metrics {
		if !fleet[1].metrics[line] {
			log.Fatalf("FAIL: %s has no metric\n%s", next, line)
		}
		metrics[strings.Fields(line)[1]] = true
	}
	// Resumes have none here.
	if len(metrics) < 9 {
		log.Fatalf("FAIL: want nine metrics: %v", metrics)
	}
	fmt.Printf("%d processes, %d attempts, %d metrics with %d attributes\n",
		len(fleet), load.Load(), len(metrics), len(fleet[0].metrics))
}
