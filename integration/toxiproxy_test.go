package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/faults"
)

const toxiproxies = 4 // each with toxics of its own

// toxiproxy is a process of its own, so that its leaks are not counted as those
// of the tests.
type toxiproxy struct {
	binary, config string
	api            string
	client         *http.Client
	process        *process
	proxies        []*toxicProxy
	restarts       int
}

// toxicProxy is one of its proxies.
type toxicProxy struct {
	Name     string `json:"name"`
	Listen   string `json:"listen"`
	Upstream string `json:"upstream"`
	Enabled  bool   `json:"enabled"`
	toxics   []string
}

// toxic is a toxic in toxiproxy's API.
type toxic struct {
	Name       string         `json:"name"`
	Type       string         `json:"type"`
	Stream     string         `json:"stream"`
	Toxicity   float64        `json:"toxicity"`
	Attributes map[string]int `json:"attributes"`
}

// buildToxiproxy builds the version that go.mod names.
func buildToxiproxy(t testing.TB) (binary string) {
	t.Helper()
	binary = filepath.Join(t.TempDir(), "toxiproxy")
	out, err := exec.Command("go", "build", "-o", binary, "github.com/Shopify/toxiproxy/v2/cmd/server").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// startToxiproxy starts one whose proxies all lead to upstream.
func startToxiproxy(t testing.TB, binary, upstream string, seed uint64) *toxiproxy {
	t.Helper()
	addrs := freeAddrs(t, toxiproxies+1)
	x := &toxiproxy{
		binary: binary,
		api:    addrs[toxiproxies],
		client: &http.Client{Transport: faults.Base(t, nil), Timeout: 2 * time.Second},
	}
	for n := range toxiproxies {
		x.proxies = append(x.proxies, &toxicProxy{fmt.Sprint(n), addrs[n], upstream, true, nil})
	}
	config, err := json.Marshal(x.proxies)
	require.NoError(t, err)
	x.config = writeFile(t, "toxiproxy.json", string(config))
	x.launch(t, seed)
	return x
}

func (x *toxiproxy) launch(t testing.TB, seed uint64) {
	t.Helper()
	_, port, err := net.SplitHostPort(x.api)
	require.NoError(t, err)
	t.Setenv("LOG_LEVEL", "error")
	x.process = start(t, x.api, x.binary, "-host", "127.0.0.1", "-port", port,
		"-config", x.config, "-seed", strconv.FormatInt(int64(seed>>1), 10))
}

// dial connects to one of the proxies.
func (x *toxiproxy) dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", x.proxies[mathrand.IntN(len(x.proxies))].Listen)
}

// finish stops toxiproxy and the connections to its API.
func (x *toxiproxy) finish(t testing.TB) {
	t.Helper()
	t.Logf("toxiproxy had to be restarted %d times", x.restarts)
	x.client.CloseIdleConnections()
	x.process.finish(t, syscall.SIGTERM)
}

// change draws the next change of one of the proxies.
func (x *toxiproxy) change(t testing.TB, rnd *mathrand.Rand) {
	t.Helper()
	p := x.proxies[rnd.IntN(len(x.proxies))]
	var err error
	switch n := rnd.IntN(100); {
	case len(p.toxics) >= 3 || n < 40:
		for err == nil && len(p.toxics) > 0 {
			err = x.call(http.MethodDelete, "/proxies/"+p.Name+"/toxics/"+p.toxics[0], nil)
			p.toxics = p.toxics[1:]
		}
	case n < 45: // all its connections break
		err = x.call(http.MethodPost, "/proxies/"+p.Name, map[string]bool{"enabled": false})
		if err == nil {
			err = x.call(http.MethodPost, "/proxies/"+p.Name, map[string]bool{"enabled": true})
		}
	default:
		add := drawToxic(rnd)
		if slices.Contains(p.toxics, add.Name) {
			return
		}
		err = x.call(http.MethodPost, "/proxies/"+p.Name+"/toxics", add)
		p.toxics = append(p.toxics, add.Name)
	}
	if err != nil { // a toxic for a connection that ends just then may crash it, or lock it up
		t.Logf("toxiproxy is restarted: %v", err)
		x.restart(t, rnd.Uint64())
	}
}

func (x *toxiproxy) restart(t testing.TB, seed uint64) {
	t.Helper()
	x.restarts++
	x.process.finish(t, syscall.SIGTERM)
	for _, p := range x.proxies {
		p.toxics = nil
	}
	x.launch(t, seed)
}

// call asks the API for something.
func (x *toxiproxy) call(method, path string, body any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	req, err := http.NewRequest(method, "http://"+x.api+path, bytes.NewReader(text))
	if err != nil {
		return err
	}
	resp, err := x.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if resp.StatusCode >= 400 {
		return fmt.Errorf("%s %s: %s %s", method, path, resp.Status, answer)
	}
	return err
}

// drawToxic draws a toxic; the units are toxiproxy's: milliseconds, KB a
// second, bytes, and for the slicer's delay microseconds.
func drawToxic(rnd *mathrand.Rand) toxic {
	kinds := []toxic{
		{Type: "latency", Attributes: map[string]int{"latency": rnd.IntN(100), "jitter": rnd.IntN(50)}},
		{Type: "bandwidth", Attributes: map[string]int{"rate": 500 + rnd.IntN(5000)}},
		{Type: "slicer", Attributes: map[string]int{"average_size": 500 + rnd.IntN(4000), "size_variation": 400, "delay": rnd.IntN(100)}},
		{Type: "slow_close", Attributes: map[string]int{"delay": rnd.IntN(300)}},
		{Type: "reset_peer", Attributes: map[string]int{"timeout": rnd.IntN(200)}},
		{Type: "timeout", Attributes: map[string]int{"timeout": rnd.IntN(300)}},
		{Type: "limit_data", Attributes: map[string]int{"bytes": rnd.IntN(200_000)}},
	}
	drawn := kinds[rnd.IntN(len(kinds))]
	drawn.Stream = []string{"upstream", "downstream"}[rnd.IntN(2)]
	drawn.Name = drawn.Type + "_" + drawn.Stream
	drawn.Toxicity = 0.05 + 0.4*rnd.Float64()
	return drawn
}
