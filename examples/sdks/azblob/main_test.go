package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/appendblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/pageblob"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

const secret = "a secret of the tests"

var busy = sdktest.Answer(http.StatusServiceUnavailable, "",
	"X-Ms-Error-Code", "ServerBusy", "X-Ms-Retry-After-Ms", "1", "Retry-After", "10")

// suite checks that all attempts of a request have one valid signature.
var suite = sdktest.Suite[*azblob.Client]{
	Service: func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			w.WriteHeader(http.StatusCreated)
			return
		}
		_, _ = io.WriteString(w, "content")
	},
	Client: func(_ testing.TB, s *sdktest.Server, p httpretry.Policy) (*azblob.Client, error) {
		key, err := azblob.NewSharedKeyCredential("account", base64.StdEncoding.EncodeToString([]byte(secret)))
		if err != nil {
			return nil, err
		}
		return newClient(s.URL+"/account", key, p)
	},
	Policy: recommended(),
	Check:  signed,
}

// signed checks the signature of a request, by Shared Key.
func signed(t testing.TB, r *sdktest.Request) {
	t.Helper()
	h := r.Header
	at, err := http.ParseTime(h.Get("X-Ms-Date"))
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now(), at, time.Minute)
	length := strings.TrimPrefix(h.Get("Content-Length"), "0")
	lines := []string{r.Method, h.Get("Content-Encoding"), h.Get("Content-Language"), length, h.Get("Content-Md5"),
		h.Get("Content-Type"), "", h.Get("If-Modified-Since"), h.Get("If-Match"), h.Get("If-None-Match"),
		h.Get("If-Unmodified-Since"), h.Get("Range")}
	var own []string
	for name, values := range h {
		if name = strings.ToLower(name); strings.HasPrefix(name, "x-ms-") {
			own = append(own, name+":"+strings.Join(values, ","))
		}
	}
	slices.Sort(own)
	lines = append(append(lines, own...), "/account"+r.URL.EscapedPath())
	for name, values := range r.URL.Query() { // at most one in these tests
		lines = append(lines, strings.ToLower(name)+":"+strings.Join(values, ","))
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(strings.Join(lines, "\n")))
	assert.Equal(t, "SharedKey account:"+base64.StdEncoding.EncodeToString(mac.Sum(nil)), h.Get("Authorization"),
		"attempt %s", h.Get("Retry-Attempt"))
}

func in(c *azblob.Client) *container.Client { return c.ServiceClient().NewContainerClient("container") }

func body(content string) io.ReadSeekCloser { return streaming.NopCloser(strings.NewReader(content)) }

func download(ctx context.Context, c *azblob.Client) error {
	out, err := c.DownloadStream(ctx, "container", "blob", nil)
	if err == nil {
		defer out.Body.Close()
		_, err = io.ReadAll(out.Body)
	}
	return err
}

func upload(ctx context.Context, c *azblob.Client) error {
	_, err := c.UploadBuffer(ctx, "container", "blob", []byte("content"), nil)
	return err
}

func appendBlock(ctx context.Context, c *azblob.Client) error {
	_, err := in(c).NewAppendBlobClient("blob").AppendBlock(ctx, body("block"), nil)
	return err
}

// Sent twice, an appended block would be there twice.
func TestFailures(t *testing.T) {
	suite.Failures(t, []sdktest.Call[*azblob.Client]{download, upload, appendBlock}, map[string]sdktest.Row{
		"busy":            sdktest.Once(busy, 2, 2, 1),
		"reset":           sdktest.Once(sdktest.Reset, 2, 2, 1),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 2, 1),
	})
}

func TestDown(t *testing.T) { suite.Down(t, busy, download, 4) }

// uploads are the ways in which the SDK sends a blob.
func uploads(t *testing.T, content []byte) map[string]func(*azblob.Client) error {
	t.Helper()
	file := func() *os.File { return sdktest.Bodies(t, content)["file"].(*os.File) }
	return map[string]func(*azblob.Client) error{
		"memory": func(c *azblob.Client) error {
			_, err := c.UploadBuffer(t.Context(), "container", "blob", content, nil)
			return err
		},
		"file": func(c *azblob.Client) error {
			_, err := c.UploadFile(t.Context(), "container", "blob", file(), nil)
			return err
		},
		"file, as it is": func(c *azblob.Client) error {
			_, err := in(c).NewBlockBlobClient("blob").Upload(t.Context(), file(), nil)
			return err
		},
		"seeker": func(c *azblob.Client) error {
			_, err := in(c).NewBlockBlobClient("blob").Upload(t.Context(), body(string(content)), nil)
			return err
		},
	}
}

func TestUploadsArriveWhole(t *testing.T) {
	content := sdktest.Random(3 << 20)
	for name, upload := range uploads(t, content) {
		t.Run(name, func(t *testing.T) {
			server, client := suite.Start(t, busy, sdktest.Reset, busy)
			require.NoError(t, upload(client))
			server.Whole(t, 4, content, nil)
		})
	}
}

// A busy server responds before it has read the body. The SDK has one body for
// all attempts, in which its GetBody seeks.
func TestUploadsArriveWholeAfterAnEarlyAnswer(t *testing.T) {
	content := sdktest.Random(8 << 20)
	for name, upload := range uploads(t, content) {
		t.Run(name, func(t *testing.T) {
			var requests atomic.Int32
			s := suite
			s.Early = func(w http.ResponseWriter, _ *http.Request) bool {
				early := requests.Add(1) < 4
				if early {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
				return early
			}
			server, client := s.Start(t)
			require.NoError(t, upload(client))
			server.Whole(t, 1, content, nil)
			assert.EqualValues(t, 4, requests.Load())
		})
	}
}

// A stream is sent in blocks, each of which is retried separately.
func TestStreamArrivesWhole(t *testing.T) {
	content := sdktest.Random(2<<20 + 5)
	blocks := map[string]bool{}
	s := suite
	s.Service = func(w http.ResponseWriter, r *http.Request) {
		block, _ := io.ReadAll(r.Body)
		if r.URL.Query().Get("comp") == "block" {
			blocks[string(block)] = true
		}
		w.WriteHeader(http.StatusCreated)
	}
	s.Check = nil // with two parameters in the query
	server, client := s.Start(t, func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
		if r.URL.Query().Get("comp") == "blocklist" {
			busy(s, w, r)
			return
		}
		sdktest.Lost(s, w, r) // a second copy of a block replaces the first
	})
	_, err := client.UploadStream(t.Context(), "container", "blob", io.MultiReader(bytes.NewReader(content)),
		&azblob.UploadStreamOptions{BlockSize: 1536 << 10, Concurrency: 1})
	require.NoError(t, err, server.Summary())
	assert.Len(t, server.Requests(), 6, server.Summary()) // two blocks and their list, twice
	assert.Equal(t, map[string]bool{string(content[:1536<<10]): true, string(content[1536<<10:]): true}, blocks)
}

// With a condition, a second copy of the block fails, because the first is in
// its place. The caller can see that.
func TestBlockWithAConditionIsAppendedOnce(t *testing.T) {
	var appended atomic.Bool
	s := suite
	s.Service = func(w http.ResponseWriter, _ *http.Request) {
		if appended.Swap(true) {
			w.Header().Set("X-Ms-Error-Code", "AppendPositionConditionNotMet")
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}
	server, client := s.Start(t, sdktest.Lost)
	var start int64
	_, err := in(client).NewAppendBlobClient("blob").AppendBlock(t.Context(), body("block"), &appendblob.AppendBlockOptions{
		AppendPositionAccessConditions: &appendblob.AppendPositionAccessConditions{AppendPosition: &start},
	})
	assert.True(t, bloberror.HasCode(err, bloberror.AppendPositionConditionNotMet), "%v", err)
	assert.Len(t, server.Requests(), 2)
}

// Sent twice, these would take two snapshots, or increment a number twice.
func TestSnapshotsAndIncrementsAreSentOnce(t *testing.T) {
	number := func(action pageblob.SequenceNumberActionType, n *int64) sdktest.Call[*azblob.Client] {
		return func(ctx context.Context, c *azblob.Client) error {
			_, err := in(c).NewPageBlobClient("blob").UpdateSequenceNumber(ctx,
				&pageblob.UpdateSequenceNumberOptions{ActionType: &action, SequenceNumber: n})
			return err
		}
	}
	snapshot := func(ctx context.Context, c *azblob.Client) error {
		_, err := in(c).NewPageBlobClient("blob").CreateSnapshot(ctx, nil)
		return err
	}
	s := suite
	s.Service = func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("comp") == "snapshot" {
			w.WriteHeader(http.StatusCreated)
		}
	}
	calls := []sdktest.Call[*azblob.Client]{
		snapshot,
		number(pageblob.SequenceNumberActionTypeIncrement, nil),
		number(pageblob.SequenceNumberActionTypeMax, to.Ptr[int64](7)),
	}
	s.Failures(t, calls, map[string]sdktest.Row{"executed, reset": sdktest.Once(sdktest.Lost, 1, 1, 2)})
}
