package sdks

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/appendblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/pageblob"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

// azblobPolicy retries 500 InternalError and OperationTimedOut, and 503
// ServerBusy (learn.microsoft.com/rest/api/storageservices, Status and error
// codes), as the default does. It follows X-Ms-Retry-After-Ms and Retry-After.
func azblobPolicy() httpretry.Policy {
	return httpretry.Policy{MaxAttempts: 4, Idempotent: azblobIdempotent}
}

// azblobIdempotent excludes the PUTs that must not be processed twice: one that
// takes a snapshot, one that increments a sequence number, and one that appends
// a block without a condition on its position
// (learn.microsoft.com/rest/api/storageservices, Append Block, Set Blob
// Properties).
func azblobIdempotent(req *http.Request) bool {
	switch req.URL.Query().Get("comp") {
	case "appendblock":
		//nolint:staticcheck // the SDK's keys are in lower case, and Get does not find them
		return len(req.Header["x-ms-blob-condition-appendpos"]) > 0
	case "properties":
		//nolint:staticcheck // as above
		if slices.Equal(req.Header["x-ms-sequence-number-action"], []string{"increment"}) {
			return false
		}
	case "snapshot":
		return false
	}
	return httpretry.Idempotent(req)
}

const azblobSecret = "a secret of the tests"

// newAzblob returns a client that signs a request before it reaches the
// transport, so all attempts have the same x-ms-date and signature, valid for
// 15 minutes. The signature covers all headers that begin with x-ms-.
// Config.AttemptHeader must not begin so.
func newAzblob(s setup) (*azblob.Client, error) {
	key, err := azblob.NewSharedKeyCredential("account", base64.StdEncoding.EncodeToString([]byte(azblobSecret)))
	if err != nil {
		return nil, err
	}
	options := azcore.ClientOptions{Transport: s.client}
	if !s.retries {
		// A negative value turns the SDK's retries off. By default it makes up
		// to 4 attempts, of every request, even if that is not safe.
		options.Retry = policy.RetryOptions{MaxRetries: -1}
	}
	return azblob.NewClientWithSharedKeyCredential(s.url+"/account", key,
		&azblob.ClientOptions{ClientOptions: options})
}

func in(c *azblob.Client) *container.Client { return c.ServiceClient().NewContainerClient("container") }

func azblobBody(content string) io.ReadSeekCloser {
	return streaming.NopCloser(strings.NewReader(content))
}

func downloadBlob(ctx context.Context, c *azblob.Client) error {
	out, err := c.DownloadStream(ctx, "container", "blob", nil)
	return drain(out.Body, err)
}

func uploadBlob(ctx context.Context, c *azblob.Client) error {
	_, err := c.UploadBuffer(ctx, "container", "blob", []byte("content"), nil)
	return err
}

// Sent twice, an appended block would be there twice.
func appendBlock(ctx context.Context, c *azblob.Client) error {
	_, err := in(c).NewAppendBlobClient("blob").AppendBlock(ctx, azblobBody("block"), nil)
	return err
}

// With a condition, a second copy fails, because the first is in its place.
func appendBlockAt(ctx context.Context, c *azblob.Client) error {
	_, err := in(c).NewAppendBlobClient("blob").AppendBlock(ctx, azblobBody("block"), &appendblob.AppendBlockOptions{
		AppendPositionAccessConditions: &appendblob.AppendPositionAccessConditions{AppendPosition: new(int64)}})
	return err
}

func snapshotBlob(ctx context.Context, c *azblob.Client) error {
	_, err := in(c).NewPageBlobClient("blob").CreateSnapshot(ctx, nil)
	return err
}

func sequenceNumber(action pageblob.SequenceNumberActionType, n *int64) sdktest.Call[*azblob.Client] {
	return func(ctx context.Context, c *azblob.Client) error {
		_, err := in(c).NewPageBlobClient("blob").UpdateSequenceNumber(ctx,
			&pageblob.UpdateSequenceNumberOptions{ActionType: &action, SequenceNumber: n})
		return err
	}
}

// sharedKey checks the signature of a request.
func sharedKey(t testing.TB, r *sdktest.Request) {
	t.Helper()
	h := r.Header
	at, err := http.ParseTime(h.Get("X-Ms-Date"))
	require.NoError(t, err)
	assert.WithinDuration(t, time.Now(), at, time.Minute)
	lines := []string{r.Method, h.Get("Content-Encoding"), h.Get("Content-Language"),
		strings.TrimPrefix(h.Get("Content-Length"), "0"), h.Get("Content-Md5"), h.Get("Content-Type"), "",
		h.Get("If-Modified-Since"), h.Get("If-Match"), h.Get("If-None-Match"),
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
	mac := hmac.New(sha256.New, []byte(azblobSecret))
	mac.Write([]byte(strings.Join(lines, "\n")))
	assert.Equal(t, "SharedKey account:"+base64.StdEncoding.EncodeToString(mac.Sum(nil)), h.Get("Authorization"),
		"attempt %s", h.Get("Retry-Attempt"))
}

func TestAzblob(t *testing.T) {
	busy := sdktest.Answer(http.StatusServiceUnavailable, "", "X-Ms-Retry-After-Ms", "1", "Retry-After", "10")
	suite := sdktest.Suite[*azblob.Client]{
		Service: func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPut && r.URL.Query().Get("comp") != "properties" {
				w.WriteHeader(http.StatusCreated)
			}
		},
		Client: connect(newAzblob),
		Policy: azblobPolicy(),
		Check:  sharedKey,
	}
	suite.Failures(t, []sdktest.Call[*azblob.Client]{downloadBlob, uploadBlob, appendBlock, appendBlockAt, snapshotBlob,
		sequenceNumber(pageblob.SequenceNumberActionTypeIncrement, nil),
		sequenceNumber(pageblob.SequenceNumberActionTypeMax, new(int64)),
	}, map[string]sdktest.Row{
		"busy":            sdktest.Once(busy, 2, 2, 1, 2, 1, 1, 2),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 2, 1, 2, 1, 1, 2),
	})

	content := sdktest.Random(8 << 20)
	file := func() *os.File { return sdktest.Bodies(t, content)["file"].(*os.File) }
	for name, upload := range map[string]func(*azblob.Client) error{
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
			_, err := in(c).NewBlockBlobClient("blob").Upload(t.Context(), azblobBody(string(content)), nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			// A busy server responds before it has read the body. The SDK has
			// one body for all attempts, in which its GetBody seeks.
			early := make(chan bool, 1)
			early <- true
			s := suite
			s.Early = func(w http.ResponseWriter, _ *http.Request) bool {
				select {
				case <-early:
					w.WriteHeader(http.StatusServiceUnavailable)
					return true
				default:
					return false
				}
			}
			server, client := s.Start(t, sdktest.Reset, busy)
			require.NoError(t, upload(client))
			server.Whole(t, 3, content, nil)
			assert.Empty(t, early)
		})
	}
}
