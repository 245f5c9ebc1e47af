package integration

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"log"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/faults"
)

// setting returns a number from the environment.
func setting(t testing.TB, name string, byDefault int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return byDefault
	}
	n, err := strconv.Atoi(text)
	require.NoError(t, err, name)
	require.Positive(t, n, name)
	return n
}

// countedConn counts the bytes that arrive over a link.
type countedConn struct {
	net.Conn
	bytes *atomic.Int64
}

func (c countedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.bytes.Add(int64(n))
	return n, err
}

// downloads has the results of many downloads.
type downloads struct {
	complete, resumed, failed int
	received                  int64 // bytes over the link
}

// run downloads a file n times.
func (d *downloads) run(t testing.TB, x brokenLink, n *nginx, times int, policy httpretry.Policy, want []byte) {
	t.Helper()
	var received atomic.Int64
	base := faults.Base(t, n.client)
	base.ForceAttemptHTTP2 = true
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := x.dial(ctx, network, addr)
		return countedConn{conn, &received}, err
	}
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
	require.NoError(t, err)
	client := &http.Client{Transport: transport}
	for range times {
		sum := sha256.New()
		resp, err := client.Get(n.url + "/file")
		if err == nil {
			_, err = io.Copy(sum, resp.Body)
			require.NoError(t, resp.Body.Close())
		}
		if err != nil {
			d.failed++
			continue
		}
		require.Equal(t, want, sum.Sum(nil))
		d.complete++
		if attempts := httpretry.ResultOf(resp).Attempts; attempts > 1 {
			d.resumed++
		}
	}
	base.CloseIdleConnections()
	d.received += received.Load()
}

// Hazards 0.5 and D10: nginx's files arrive complete over connections that
// break after a random number of bytes, and little is sent twice.
// INTEGRATION_DOWNLOADS and INTEGRATION_DOWNLOAD_SIZE change how many and how
// large they are.
func TestNginxDownloads(t *testing.T) {
	const modes = 4
	times, size := setting(t, "INTEGRATION_DOWNLOADS", 100)/modes, setting(t, "INTEGRATION_DOWNLOAD_SIZE", 1<<20)
	data := make([]byte, size)
	_, _ = mathrand.NewChaCha8([32]byte{7}).Read(data)
	sum := sha256.Sum256(data)
	var on, off downloads
	for _, scheme := range []string{overHTTP1, overHTTP2} {
		for _, reset := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, reset: %t", scheme, reset), func(t *testing.T) {
				n := startNginx(t, scheme, "root files;")
				require.NoError(t, os.Mkdir(filepath.Join(n.dir, "files"), 0o755))
				require.NoError(t, os.WriteFile(filepath.Join(n.dir, "files", "file"), data, 0o644))
				x := startBrokenLink(t, n.url[len(scheme+"://"):], size*3/2, reset)
				policy := eager()
				off.run(t, x, n, times, policy, sum[:])
				// Proxies with a low limit may be drawn several times in a row.
				policy.Resume, policy.MaxAttempts = true, 10
				on.run(t, x, n, times, policy, sum[:])
			})
		}
	}
	ratio := float64(on.received) / float64(on.complete) / float64(size)
	t.Logf("with Resume: %d of %d downloads of %d bytes complete, %d of them after several requests; %.3f of the size sent",
		on.complete, on.complete+on.failed, size, on.resumed, ratio)
	t.Logf("without: %d of %d failed", off.failed, off.complete+off.failed)
	assert.Zero(t, on.failed)
	assert.Greater(t, on.resumed, times)
	assert.Less(t, ratio, 1.1)
	assert.Greater(t, off.failed, times)
}

// The blobs of a registry have no validator, but their names are hashes of
// their content, so the policy has ResumeSame. Layers that go-containerregistry
// pulls survive the breaks.
func TestRegistryPulls(t *testing.T) {
	srv := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(srv.Close)
	host := srv.Listener.Addr().String()
	ref, err := name.ParseReference(host + "/test/image:latest")
	require.NoError(t, err)
	const layers, size = 3, 1 << 20
	image, err := random.Image(size, layers)
	require.NoError(t, err)
	require.NoError(t, remote.Write(ref, image))

	for _, reset := range []bool{false, true} {
		t.Run(fmt.Sprintf("reset: %t", reset), func(t *testing.T) {
			x := startBrokenLink(t, host, size*3/2, reset)
			policy := eager()
			const pulls = 10
			failed := 0
			for range pulls {
				if pull(t, x, ref, policy) != nil {
					failed++
				}
			}
			t.Logf("without Resume: %d of %d pulls of %d layers failed", failed, pulls, layers)
			assert.Greater(t, failed, pulls/2)

			policy.Resume, policy.MaxAttempts = true, 10
			policy.ResumeSame = func(first, _ *http.Response) bool {
				return strings.Contains(first.Request.URL.Path, "/blobs/sha256:")
			}
			for range pulls {
				assert.NoError(t, pull(t, x, ref, policy))
			}
		})
	}
}

// pull gets an image over a broken link, and checks it.
func pull(t *testing.T, x brokenLink, ref name.Reference, policy httpretry.Policy) error {
	t.Helper()
	base := faults.Base(t, nil)
	base.DialContext = x.dial
	defer base.CloseIdleConnections()
	transport, err := httpretry.New(httpretry.Config{Base: base, Policy: policy})
	require.NoError(t, err)
	pulled, err := remote.Image(ref, remote.WithTransport(transport), remote.WithContext(t.Context()))
	if err != nil {
		return err
	}
	return validate.Image(pulled) // reads and hashes all layers
}
