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
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/faults"
)

// links is the number of proxies of a broken link.
const links = 32

// toxiproxy is a process of its own. All its proxies lead to one server.
type toxiproxy struct {
	api     string
	client  *http.Client
	process *process
	proxies []toxicProxy
}

type toxicProxy struct {
	Name     string `json:"name"`
	Listen   string `json:"listen"`
	Upstream string `json:"upstream"`
	Enabled  bool   `json:"enabled"`
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

// startBrokenLink starts a toxiproxy whose connections break after a random
// number of bytes, up to most. reset breaks them with a reset. Toxics that are
// changed while connections end may crash toxiproxy, so each proxy keeps its
// limit, and a connection draws a proxy.
func startBrokenLink(t testing.TB, binary, upstream string, most int, reset bool) *toxiproxy {
	t.Helper()
	addrs := freeAddrs(t, links+1)
	x := &toxiproxy{api: addrs[links], client: &http.Client{Transport: faults.Base(t, nil), Timeout: time.Minute}}
	for n := range links {
		x.proxies = append(x.proxies, toxicProxy{fmt.Sprint(n), addrs[n], upstream, true})
	}
	config, err := json.Marshal(x.proxies)
	require.NoError(t, err)
	_, port, err := net.SplitHostPort(x.api)
	require.NoError(t, err)
	t.Setenv("LOG_LEVEL", "error")
	x.process = start(t, x.api, binary, "-host", "127.0.0.1", "-port", port,
		"-config", writeFile(t, "toxiproxy.json", string(config)), "-seed", "1")
	for _, p := range x.proxies {
		if reset {
			// Without toxicity, it only makes the end of a connection a reset.
			x.add(t, p, toxic{Name: "reset", Type: "reset_peer", Stream: "downstream",
				Attributes: map[string]int{"timeout": 0}})
		}
		x.add(t, p, toxic{Name: "limit", Type: "limit_data", Stream: "downstream", Toxicity: 1,
			Attributes: map[string]int{"bytes": mathrand.IntN(most)}})
	}
	return x
}

// add asks the API for a toxic.
func (x *toxiproxy) add(t testing.TB, p toxicProxy, toxic toxic) {
	t.Helper()
	text, err := json.Marshal(toxic)
	require.NoError(t, err)
	resp, err := x.client.Post("http://"+x.api+"/proxies/"+p.Name+"/toxics", "application/json", bytes.NewReader(text))
	require.NoError(t, err)
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.Less(t, resp.StatusCode, 400, "%s", answer)
}

// dial connects to one of the proxies.
func (x *toxiproxy) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", x.proxies[mathrand.IntN(links)].Listen)
}

// finish stops toxiproxy and the connections to its API.
func (x *toxiproxy) finish(t testing.TB) {
	t.Helper()
	x.client.CloseIdleConnections()
	x.process.finish(t, syscall.SIGTERM)
}
