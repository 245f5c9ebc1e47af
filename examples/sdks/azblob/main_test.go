package main

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/appendblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/pageblob"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
	"github.com/seed421102f4/httpretry/strategies"
)

const secret = "a secret of the tests"

var busy = sdktest.Answer(http.StatusServiceUnavailable, "",
	"X-Ms-Error-Code", "ServerBusy", "X-Ms-Retry-After-Ms", "1", "Retry-After", "10")

func storage(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPut {
		w.WriteHeader(http.StatusCreated)
		return
	}
	_, _ = io.WriteString(w, "content")
}

func credential(t *testing.T) *azblob.SharedKeyCredential {
	t.Helper()
	key, err := azblob.NewSharedKeyCredential("account", base64.StdEncoding.EncodeToString([]byte(secret)))
	require.NoError(t, err)
	return key
}

func connect(t *testing.T, url string) *azblob.Client {
	t.Helper()
	p := recommended()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
	client, err := newClient(url+"/account", credential(t), p)
	require.NoError(t, err)
	return client
}

// signed checks the signatures of all requests, by Shared Key.
func signed(t *testing.T, s *sdktest.Server) {
	t.Helper()
	for _, r := range s.Requests() {
		at, err := http.ParseTime(r.Header.Get("X-Ms-Date"))
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), at, time.Minute)
		var lines []string
		length := r.Header.Get("Content-Length")
		if length == "0" {
			length = ""
		}
		h := r.Header
		lines = append(lines, r.Method, h.Get("Content-Encoding"), h.Get("Content-Language"), length, h.Get("Content-Md5"),
			h.Get("Content-Type"), "", h.Get("If-Modified-Since"), h.Get("If-Match"), h.Get("If-None-Match"),
			h.Get("If-Unmodified-Since"), h.Get("Range"))
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
}

func TestReadIsRetriedWithTheSameSignature(t *testing.T) {
	s := sdktest.New(t, http.HandlerFunc(storage), sdktest.Reset(), busy)
	out, err := connect(t, s.URL).DownloadStream(t.Context(), "container", "blob", nil)
	require.NoError(t, err)
	defer out.Body.Close()
	content, err := io.ReadAll(out.Body)
	require.NoError(t, err)
	assert.Equal(t, "content", string(content))

	signed(t, s)
	requests := s.Requests()
	require.Len(t, requests, 3, s.Summary())
	for i, r := range requests {
		assert.Equal(t, requests[0].Header["Authorization"], r.Header["Authorization"])
		assert.Equal(t, requests[0].Header["X-Ms-Client-Request-Id"], r.Header["X-Ms-Client-Request-Id"])
		assert.Equal(t, []string{"", "1", "2"}[i], r.Header.Get("Retry-Attempt"))
	}
}

// uploads are the ways in which the SDK sends a blob.
func uploads(t *testing.T, content []byte) map[string]func(*azblob.Client) error {
	t.Helper()
	return map[string]func(*azblob.Client) error{
		"memory": func(c *azblob.Client) error {
			_, err := c.UploadBuffer(t.Context(), "container", "blob", content, nil)
			return err
		},
		"file": func(c *azblob.Client) error {
			_, err := c.UploadFile(t.Context(), "container", "blob", sdktest.File(t, "upload", content), nil)
			return err
		},
		"file, as it is": func(c *azblob.Client) error {
			_, err := c.ServiceClient().NewContainerClient("container").NewBlockBlobClient("blob").Upload(t.Context(), sdktest.File(t, "upload", content), nil)
			return err
		},
		"seeker": func(c *azblob.Client) error {
			_, err := c.ServiceClient().NewContainerClient("container").NewBlockBlobClient("blob").
				Upload(t.Context(), streaming.NopCloser(bytes.NewReader(content)), nil)
			return err
		},
	}
}

func TestUploadsArriveWhole(t *testing.T) {
	content := sdktest.Random(3 << 20)
	for name, upload := range uploads(t, content) {
		t.Run(name, func(t *testing.T) {
			s := sdktest.New(t, http.HandlerFunc(storage), busy, sdktest.Reset(), busy)
			require.NoError(t, upload(connect(t, s.URL)))
			signed(t, s)
			require.Len(t, s.Requests(), 4, s.Summary())
			for _, r := range s.Requests() {
				assert.Equal(t, sha256.Sum256(content), sha256.Sum256(r.Content))
			}
			assert.Equal(t, 1, s.Executed(http.MethodPut))
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
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if requests.Add(1) < 4 {
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				hash := sha256.New()
				_, _ = io.Copy(hash, r.Body)
				assert.Equal(t, sha256.Sum256(content), [32]byte(hash.Sum(nil)))
				w.WriteHeader(http.StatusCreated)
			}))
			defer s.Close()
			require.NoError(t, upload(connect(t, s.URL)))
			assert.EqualValues(t, 4, requests.Load())
		})
	}
}

// A stream is sent in blocks, each of which is retried separately.
func TestStreamArrivesWhole(t *testing.T) {
	content := sdktest.Random(2<<20 + 5)
	blocks := map[string]bool{}
	s := sdktest.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		block, _ := io.ReadAll(r.Body)
		if r.URL.Query().Get("comp") == "block" {
			blocks[string(block)] = true
		}
		w.WriteHeader(http.StatusCreated)
	}), func(s *sdktest.Server, w http.ResponseWriter, r *sdktest.Request) {
		if r.URL.Query().Get("comp") == "blocklist" {
			busy(s, w, r)
			return
		}
		sdktest.Lost()(s, w, r) // a second copy of a block replaces the first
	})
	_, err := connect(t, s.URL).UploadStream(t.Context(), "container", "blob", io.MultiReader(bytes.NewReader(content)),
		&azblob.UploadStreamOptions{BlockSize: 1536 << 10, Concurrency: 1})
	require.NoError(t, err, s.Summary())
	assert.Len(t, s.Requests(), 6, s.Summary()) // two blocks and their list, twice
	assert.Equal(t, map[string]bool{string(content[:1536<<10]): true, string(content[1536<<10:]): true}, blocks)
}

func TestBlockIsAppendedOnce(t *testing.T) {
	block := func() io.ReadSeekCloser { return streaming.NopCloser(strings.NewReader("block")) }
	s := sdktest.New(t, http.HandlerFunc(storage), sdktest.Lost())
	blob := connect(t, s.URL).ServiceClient().NewContainerClient("container").NewAppendBlobClient("blob")
	_, err := blob.AppendBlock(t.Context(), block(), nil)
	require.Error(t, err)
	assert.Equal(t, 1, s.Executed(http.MethodPut))
	assert.Len(t, s.Requests(), 1)

	// With a condition, a second copy of the block fails, because the first is
	// in its place. The caller can see that.
	var appended atomic.Bool
	s = sdktest.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if appended.Swap(true) {
			w.Header().Set("X-Ms-Error-Code", "AppendPositionConditionNotMet")
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}), sdktest.Lost())
	blob = connect(t, s.URL).ServiceClient().NewContainerClient("container").NewAppendBlobClient("blob")
	var start int64
	_, err = blob.AppendBlock(t.Context(), block(), &appendblob.AppendBlockOptions{
		AppendPositionAccessConditions: &appendblob.AppendPositionAccessConditions{AppendPosition: &start},
	})
	assert.True(t, bloberror.HasCode(err, bloberror.AppendPositionConditionNotMet), "%v", err)
	assert.Len(t, s.Requests(), 2)
}

// Sent twice, these would take two snapshots, or increment a number twice.
func TestSnapshotsAndIncrementsAreSentOnce(t *testing.T) {
	for name, test := range map[string]struct {
		do   func(*pageblob.Client) error
		want int
	}{
		"snapshot": {func(c *pageblob.Client) error {
			_, err := c.CreateSnapshot(t.Context(), nil)
			return err
		}, 1},
		"increment": {func(c *pageblob.Client) error {
			_, err := c.UpdateSequenceNumber(t.Context(), &pageblob.UpdateSequenceNumberOptions{
				ActionType: to.Ptr(pageblob.SequenceNumberActionTypeIncrement),
			})
			return err
		}, 1},
		"maximum": {func(c *pageblob.Client) error {
			_, err := c.UpdateSequenceNumber(t.Context(), &pageblob.UpdateSequenceNumberOptions{
				ActionType: to.Ptr(pageblob.SequenceNumberActionTypeMax), SequenceNumber: to.Ptr[int64](7),
			})
			return err
		}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			s := sdktest.New(t, http.HandlerFunc(storage), sdktest.Lost())
			blob := connect(t, s.URL).ServiceClient().NewContainerClient("container").NewPageBlobClient("blob")
			_ = test.do(blob) // the SDK does not accept the response
			assert.Len(t, s.Requests(), test.want, s.Summary())
			assert.Equal(t, test.want, s.Executed(http.MethodPut))
		})
	}
}

// With the default of MaxRetries, attempts multiply.
func TestRetriesMultiply(t *testing.T) {
	for retries, want := range map[int32]int{-1: 2, 2: 6} {
		t.Run(fmt.Sprint(retries), func(t *testing.T) {
			s := sdktest.New(t, http.HandlerFunc(storage), slices.Repeat([]sdktest.Fault{busy}, 10)...)
			transport, err := httpretry.New(httpretry.Config{Policy: httpretry.Policy{
				MaxAttempts: 2, Backoff: strategies.Constant{Wait: time.Millisecond}, Budget: httpretry.Unlimited{},
			}})
			require.NoError(t, err)
			client, err := azblob.NewClientWithSharedKeyCredential(s.URL+"/account", credential(t), &azblob.ClientOptions{
				ClientOptions: azcore.ClientOptions{
					Transport: &http.Client{Transport: transport},
					Retry:     policy.RetryOptions{MaxRetries: retries, RetryDelay: -1},
				},
			})
			require.NoError(t, err)
			_, err = client.DownloadStream(t.Context(), "container", "blob", nil)
			require.Error(t, err)
			assert.Len(t, s.Requests(), want)
		})
	}
}
