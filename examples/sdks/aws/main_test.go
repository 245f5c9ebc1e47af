package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	types3 "github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

const secret = "a secret of the tests"

// api responds like S3 and DynamoDB to the requests of the tests.
func api(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.Header.Get("X-Amz-Target") != "":
		w.Header().Set("Content-Type", "application/x-amz-json-1.0")
		_, _ = io.WriteString(w, "{}")
	case r.Method == http.MethodPut:
		w.Header().Set("ETag", `"e"`)
	case r.URL.Query().Has("uploads"):
		_, _ = io.WriteString(w, "<InitiateMultipartUploadResult><UploadId>u1</UploadId></InitiateMultipartUploadResult>")
	default:
		_, _ = io.WriteString(w, "content")
	}
}

type clients struct {
	cfg     aws.Config
	objects *s3.Client
	items   *dynamodb.Client
}

// suite checks that all attempts of a request have one valid signature.
var suite = sdktest.Suite[clients]{
	Service: api,
	Client: func(t testing.TB, s *sdktest.Server, p httpretry.Policy) (clients, error) {
		base := &http.Transport{}
		if s.TLS != nil { // HTTP/1.1, as with S3
			base.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			base.TLSClientConfig.NextProtos = nil
		}
		t.Cleanup(base.CloseIdleConnections)
		cfg, err := configure(aws.Config{
			Region:       "us-east-1",
			BaseEndpoint: aws.String(s.URL),
			Credentials:  credentials.NewStaticCredentialsProvider("key", secret, ""),

			RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported,
		}, httpretry.Config{Base: base, Policy: p})
		return clients{cfg,
			s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true }),
			dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) { o.Retryer = retry.NewStandard(throttlesOnly, quick) }),
		}, err
	},
	Policy: policy(),
	Check: func(t testing.TB, r *sdktest.Request) {
		_, _, err := sdktest.SigV4(r, secret)
		assert.NoError(t, err, "attempt %s", r.Header.Get("Retry-Attempt"))
	},
}

func quick(o *retry.StandardOptions) {
	o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return time.Millisecond, nil })
}

var (
	slowDown = sdktest.Answer(http.StatusServiceUnavailable,
		"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
	throttled = sdktest.Answer(http.StatusBadRequest,
		`{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}`,
		"Content-Type", "application/x-amz-json-1.0")
)

var bucket, name, table = aws.String("bucket"), aws.String("a key"), aws.String("table")

func getObject(ctx context.Context, c clients) error {
	out, err := c.objects.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: name})
	if err == nil {
		defer out.Body.Close()
		_, err = io.ReadAll(out.Body)
	}
	return err
}

func putObject(ctx context.Context, c clients) error {
	return put(ctx, c, strings.NewReader("content"), 7)
}

func put(ctx context.Context, c clients, body io.Reader, size int64) error {
	_, err := c.objects.PutObject(ctx, &s3.PutObjectInput{
		Bucket: bucket, Key: name, Body: body, ContentLength: &size})
	return err
}

func beginUpload(ctx context.Context, c clients) error {
	_, err := c.objects.CreateMultipartUpload(ctx, &s3.CreateMultipartUploadInput{Bucket: bucket, Key: name})
	return err
}

var id = map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: "1"}}

func getItem(ctx context.Context, c clients) error {
	_, err := c.items.GetItem(ctx, &dynamodb.GetItemInput{TableName: table, Key: id})
	return err
}

func updateItem(ctx context.Context, c clients) error {
	_, err := c.items.UpdateItem(ctx, &dynamodb.UpdateItemInput{
		TableName: table, Key: id, UpdateExpression: aws.String("ADD visits :one"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":one": &types.AttributeValueMemberN{Value: "1"}},
	})
	return err
}

// transact sends a ClientRequestToken, which the SDK makes.
func transact(ctx context.Context, c clients) error {
	_, err := c.items.TransactWriteItems(ctx, &dynamodb.TransactWriteItemsInput{
		TransactItems: []types.TransactWriteItem{{Delete: &types.Delete{TableName: table, Key: id}}},
	})
	return err
}

// The SDK retries requests that DynamoDB has throttled, writes as well.
func TestFailures(t *testing.T) {
	calls := []sdktest.Call[clients]{getObject, putObject, beginUpload, getItem, updateItem, transact}
	suite.Failures(t, calls, map[string]sdktest.Row{
		"slow down":       sdktest.Once(slowDown, 2, 2, 1, 2, 1, 2),
		"500":             sdktest.Once(sdktest.Answer(500, ""), 2, 2, 1, 2, 1, 2),
		"reset":           sdktest.Once(sdktest.Reset, 2, 2, 1, 2, 1, 2),
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 2, 1, 2, 1, 2),
		"throttled":       sdktest.Once(throttled, 1, 1, 1, 2, 2, 2),
	})
}

func TestDown(t *testing.T) {
	suite.Down(t, slowDown, getObject, 3)
	suite.Down(t, sdktest.Answer(500, ""), getItem, 3)
}

// A retry of the SDK has a new signature and a new attempt number.
func TestThrottledWriteIsRetriedByTheSDK(t *testing.T) {
	server, c := suite.Start(t, throttled)
	require.NoError(t, updateItem(t.Context(), c))
	second := server.Requests()[1]
	assert.Equal(t, "attempt=2; max=3", second.Header.Get("Amz-Sdk-Request"))
	assert.Empty(t, second.Header.Get("Retry-Attempt"))

	server, c = suite.Start(t, throttled)
	c.items = dynamodb.NewFromConfig(c.cfg) // without a retryer
	var code *types.ProvisionedThroughputExceededException
	require.True(t, errors.As(updateItem(t.Context(), c), &code))
	assert.Len(t, server.Requests(), 1)
}

// A large object survives connections that break in the middle of it. Each
// request for the rest has the signature of the first.
func TestGetObjectIsResumed(t *testing.T) {
	content := sdktest.Random(3 << 20)
	s := suite
	s.Service = func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"e"`)
		if r.Header.Get("Range") == "" {
			w.Header().Set("X-Amz-Checksum-Crc32", checksum(content))
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}
	server, c := s.Start(t, sdktest.Cut(1<<20), sdktest.Reset, sdktest.Cut(100_000))
	out, err := c.objects.GetObject(t.Context(), &s3.GetObjectInput{
		Bucket: bucket, Key: name, ChecksumMode: types3.ChecksumModeEnabled})
	require.NoError(t, err)
	defer out.Body.Close()
	got, err := io.ReadAll(out.Body) // which the SDK checks against the checksum
	require.NoError(t, err)
	assert.Equal(t, sha256.Sum256(content), sha256.Sum256(got))
	require.Len(t, server.Requests(), 4, server.Summary())
	assert.Equal(t, "bytes=1048576-3145727", server.Requests()[1].Header.Get("Range"))
	assert.Equal(t, "bytes=1148576-3145727", server.Requests()[3].Header.Get("Range"))
}

func checksum(content []byte) string {
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(content)))
}

// A stream is sent with its checksum in a trailer, which needs TLS.
func TestUploadsArriveWhole(t *testing.T) {
	content := sdktest.Random(3 << 20)
	for name, body := range sdktest.Bodies(t, content) {
		t.Run(name, func(t *testing.T) {
			_, seekable := body.(io.Seeker)
			s := suite
			s.TLS = !seekable
			server, c := s.Start(t, slowDown, sdktest.Reset)
			require.NoError(t, put(t.Context(), c, body, 3<<20))
			server.Whole(t, 3, content, func(r *sdktest.Request) []byte {
				payload, trailers, err := sdktest.SigV4(r, secret)
				require.NoError(t, err)
				if s.TLS {
					assert.Equal(t, checksum(content), trailers["x-amz-checksum-crc32"])
				}
				return payload
			})
		})
	}
}

// Bodies from memory and from files have no GetBody here.
func TestUploadBeyondTheBufferIsSentOnce(t *testing.T) {
	server, c := suite.Start(t, slowDown)
	content := bytes.NewReader(sdktest.Random(7 << 20))
	assert.ErrorContains(t, put(t.Context(), c, content, content.Size()), "SlowDown")
	assert.Len(t, server.Requests(), 1)
}
