package sdks

import (
	"context"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/appendblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/bloberror"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
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

// newAzblob returns a client that signs a request before it reaches the
// transport, so all attempts have the same x-ms-date and signature, valid for
// 15 minutes. The signature covers all headers that begin with x-ms-.
// Config.AttemptHeader must not begin so.
func newAzblob(s setup) (*azblob.Client, error) {
	key, err := azblob.NewSharedKeyCredential("account", "c2VjcmV0")
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

func block() io.ReadSeekCloser { return streaming.NopCloser(strings.NewReader("block")) }

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
	_, err := in(c).NewAppendBlobClient("blob").AppendBlock(ctx, block(), nil)
	return err
}

// With a condition, a second copy fails, because the first is in its place.
func appendBlockAt(ctx context.Context, c *azblob.Client) error {
	_, err := in(c).NewAppendBlobClient("blob").AppendBlock(ctx, block(), &appendblob.AppendBlockOptions{
		AppendPositionAccessConditions: &appendblob.AppendPositionAccessConditions{AppendPosition: new(int64)}})
	return err
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
		// All attempts have the signature, and the headers that it covers.
		Check: func(t testing.TB, r *sdktest.Request) {
			assert.Contains(t, r.Header.Get("Authorization"), "SharedKey account:")
		},
	}
	snapshot := func(ctx context.Context, c *azblob.Client) error {
		_, err := in(c).NewPageBlobClient("blob").CreateSnapshot(ctx, nil)
		return err
	}
	number := func(action pageblob.SequenceNumberActionType, n *int64) sdktest.Call[*azblob.Client] {
		return func(ctx context.Context, c *azblob.Client) error {
			_, err := in(c).NewPageBlobClient("blob").UpdateSequenceNumber(ctx,
				&pageblob.UpdateSequenceNumberOptions{ActionType: &action, SequenceNumber: n})
			return err
		}
	}
	suite.Failures(t, []sdktest.Call[*azblob.Client]{downloadBlob, uploadBlob, appendBlock, appendBlockAt, snapshot,
		number(pageblob.SequenceNumberActionTypeIncrement, nil),
		number(pageblob.SequenceNumberActionTypeMax, new(int64)),
	}, map[string]sdktest.Row{
		"busy":            sdktest.Once(busy, 2, 2, 1, 2, 1, 1, 2),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 2, 1, 2, 1, 1, 2),
	})
	// The block is in its place, but only the first response said so.
	t.Run("appended, lost", func(t *testing.T) {
		server, client := suite.Start(t, sdktest.Lost, sdktest.Answer(http.StatusPreconditionFailed, "",
			"X-Ms-Error-Code", string(bloberror.AppendPositionConditionNotMet)))
		err := appendBlockAt(t.Context(), client)
		assert.True(t, bloberror.HasCode(err, bloberror.AppendPositionConditionNotMet), "%v", err)
		assert.Equal(t, 1, server.Executed())
	})

	content := sdktest.Random(8 << 20)
	blob := func(c *azblob.Client) *blockblob.Client { return in(c).NewBlockBlobClient("blob") }
	for name, upload := range map[string]func(*azblob.Client, *os.File) error{
		"memory": func(c *azblob.Client, _ *os.File) error {
			_, err := blob(c).UploadBuffer(t.Context(), content, nil)
			return err
		},
		"file": func(c *azblob.Client, file *os.File) error {
			_, err := blob(c).UploadFile(t.Context(), file, nil)
			return err
		},
		"file, as it is": func(c *azblob.Client, file *os.File) error {
			_, err := blob(c).Upload(t.Context(), file, nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			// A busy server responds before it has read the body. The SDK has
			// one body for all attempts, in which its GetBody seeks.
			var answered atomic.Bool
			s := suite
			s.Early = func(w http.ResponseWriter, _ *http.Request) bool {
				if answered.Swap(true) {
					return false
				}
				w.WriteHeader(http.StatusServiceUnavailable)
				return true
			}
			server, client := s.Start(t, sdktest.Reset, busy)
			require.NoError(t, upload(client, sdktest.Bodies(t, content)["file"].(*os.File)))
			server.Whole(t, 3, content)
		})
	}
}
