package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	"net/http"
	"slices"
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
	"github.com/seed421102f4/httpretry/strategies"
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

var (
	slowDown = sdktest.Answer(http.StatusServiceUnavailable,
		"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>")
	internal = sdktest.Answer(http.StatusInternalServerError,
		`{"__type":"com.amazonaws.dynamodb.v20120810#InternalServerError"}`, "Content-Type", "application/x-amz-json-1.0")
	throttled = sdktest.Answer(http.StatusBadRequest,
		`{"__type":"com.amazonaws.dynamodb.v20120810#ProvisionedThroughputExceededException"}`,
		"Content-Type", "application/x-amz-json-1.0")
)

// config returns a configuration for a test server.
func config(t *testing.T, s *sdktest.Server) aws.Config {
	t.Helper()
	p := policy()
	p.Backoff = strategies.Constant{Wait: time.Millisecond}
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
	require.NoError(t, err)
	return cfg
}

func objects(t *testing.T, s *sdktest.Server) *s3.Client {
	t.Helper()
	return s3.NewFromConfig(config(t, s), func(o *s3.Options) { o.UsePathStyle = true })
}

func items(t *testing.T, s *sdktest.Server) *dynamodb.Client {
	t.Helper()
	return dynamodb.NewFromConfig(config(t, s), func(o *dynamodb.Options) {
		o.Retryer = retry.NewStandard(throttlesOnly, func(o *retry.StandardOptions) {
			o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return time.Millisecond, nil })
		})
	})
}

// signed checks the signatures of all requests.
func signed(t *testing.T, s *sdktest.Server) {
	t.Helper()
	for _, r := range s.Requests() {
		_, _, err := sdktest.SigV4(r, secret)
		require.NoError(t, err, "attempt %s", r.Header.Get("Retry-Attempt"))
	}
}

func TestGetObjectIsRetriedWithTheSameSignature(t *testing.T) {
	s := sdktest.New(t, http.HandlerFunc(api), sdktest.Reset(), slowDown)
	out, err := objects(t, s).GetObject(t.Context(), &s3.GetObjectInput{Bucket: aws.String("bucket"), Key: aws.String("a key")})
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
		assert.Equal(t, "attempt=1; max=1", r.Header.Get("Amz-Sdk-Request"))
		assert.Equal(t, []string{"", "1", "2"}[i], r.Header.Get("Retry-Attempt"))
	}
}

// A large object survives connections that break in the middle of it. Each
// request for the rest has the signature of the first.
func TestGetObjectIsResumed(t *testing.T) {
	content := sdktest.Random(3 << 20)
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(content))
	s := sdktest.New(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("ETag", `"e"`)
		if r.Header.Get("Range") == "" {
			w.Header().Set("X-Amz-Checksum-Crc32", base64.StdEncoding.EncodeToString(sum))
		}
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
	}), sdktest.Cut(1<<20), sdktest.Reset(), sdktest.Cut(100_000))
	p := s3.GetObjectInput{Bucket: aws.String("bucket"), Key: aws.String("key"), ChecksumMode: types3.ChecksumModeEnabled}
	out, err := objects(t, s).GetObject(t.Context(), &p)
	require.NoError(t, err)
	defer out.Body.Close()
	got, err := io.ReadAll(out.Body) // which the SDK checks against the checksum
	require.NoError(t, err)
	assert.Equal(t, sha256.Sum256(content), sha256.Sum256(got))

	signed(t, s)
	require.Len(t, s.Requests(), 4, s.Summary())
	assert.Equal(t, "bytes=1048576-3145727", s.Requests()[1].Header.Get("Range"))
	assert.Equal(t, "bytes=1148576-3145727", s.Requests()[3].Header.Get("Range"))
}

func TestUploadsArriveWhole(t *testing.T) {
	content := sdktest.Random(3 << 20)
	file := sdktest.File(t, "upload", content)

	for name, body := range map[string]io.Reader{"memory": bytes.NewReader(content), "file": file} {
		t.Run(name, func(t *testing.T) {
			s := sdktest.New(t, http.HandlerFunc(api), slowDown, sdktest.Reset())
			_, err := objects(t, s).PutObject(t.Context(), &s3.PutObjectInput{Bucket: aws.String("bucket"), Key: aws.String("key"), Body: body})
			require.NoError(t, err)
			signed(t, s)
			require.Len(t, s.Requests(), 3, s.Summary())
			for _, r := range s.Requests() {
				assert.Equal(t, sha256.Sum256(content), sha256.Sum256(r.Content))
			}
			assert.Equal(t, 1, s.Executed(http.MethodPut))
		})
	}
}

// A stream is sent with its checksum in a trailer, which needs TLS.
func TestStreamArrivesWholeWithItsChecksum(t *testing.T) {
	content := sdktest.Random(3 << 20)
	sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE(content))
	s := sdktest.NewTLS(t, http.HandlerFunc(api), slowDown, sdktest.Reset())
	_, err := objects(t, s).PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String("bucket"), Key: aws.String("key"),
		Body: io.MultiReader(bytes.NewReader(content)), ContentLength: aws.Int64(int64(len(content))),
	})
	require.NoError(t, err)
	require.Len(t, s.Requests(), 3, s.Summary())
	for _, r := range s.Requests() {
		payload, trailers, err := sdktest.SigV4(r, secret)
		require.NoError(t, err)
		assert.Equal(t, sha256.Sum256(content), sha256.Sum256(payload))
		assert.Equal(t, base64.StdEncoding.EncodeToString(sum), trailers["x-amz-checksum-crc32"])
	}
}

// Bodies from memory and from files have no GetBody here.
func TestUploadBeyondTheBufferIsSentOnce(t *testing.T) {
	s := sdktest.New(t, http.HandlerFunc(api), slowDown)
	_, err := objects(t, s).PutObject(t.Context(), &s3.PutObjectInput{
		Bucket: aws.String("bucket"), Key: aws.String("key"), Body: bytes.NewReader(sdktest.Random(7 << 20)),
	})
	assert.ErrorContains(t, err, "SlowDown")
	assert.Len(t, s.Requests(), 1)
}

func TestMultipartUploadBeginsOnce(t *testing.T) {
	s := sdktest.New(t, http.HandlerFunc(api), sdktest.Lost())
	_, err := objects(t, s).CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{Bucket: aws.String("bucket"), Key: aws.String("key")})
	require.Error(t, err)
	assert.Equal(t, 1, s.Executed(http.MethodPost))
	assert.Len(t, s.Requests(), 1)
}

func key(id string) map[string]types.AttributeValue {
	return map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: id}}
}

func update(t *testing.T, db *dynamodb.Client) error {
	_, err := db.UpdateItem(t.Context(), &dynamodb.UpdateItemInput{
		TableName: aws.String("table"), Key: key("1"), UpdateExpression: aws.String("ADD visits :one"),
		ExpressionAttributeValues: map[string]types.AttributeValue{":one": &types.AttributeValueMemberN{Value: "1"}},
	})
	return err
}

func TestItemsAreReadAgainAndNotWrittenTwice(t *testing.T) {
	s := sdktest.New(t, http.HandlerFunc(api), sdktest.Reset(), internal)
	_, err := items(t, s).GetItem(t.Context(), &dynamodb.GetItemInput{TableName: aws.String("table"), Key: key("1")})
	require.NoError(t, err)
	signed(t, s)
	assert.Len(t, s.Requests(), 3, s.Summary())

	for _, fault := range []sdktest.Fault{internal, sdktest.Lost()} {
		s = sdktest.New(t, http.HandlerFunc(api), fault)
		require.Error(t, update(t, items(t, s)))
		assert.Len(t, s.Requests(), 1, s.Summary())
		assert.LessOrEqual(t, s.Executed(""), 1)
	}
}

func TestTransactionIsRetriedWithItsToken(t *testing.T) {
	s := sdktest.New(t, http.HandlerFunc(api), sdktest.Lost())
	_, err := items(t, s).TransactWriteItems(t.Context(), &dynamodb.TransactWriteItemsInput{
		TransactItems: []types.TransactWriteItem{{Delete: &types.Delete{TableName: aws.String("table"), Key: key("1")}}},
	})
	require.NoError(t, err)
	signed(t, s)
	requests := s.Requests()
	require.Len(t, requests, 2, s.Summary())
	assert.Regexp(t, `"ClientRequestToken":"[^"]{16,}"`, string(requests[0].Content))
	assert.Equal(t, string(requests[0].Content), string(requests[1].Content))
}

// The SDK retries throttled requests, writes as well. Each of its attempts has
// a new signature and a new attempt number.
func TestThrottledWriteIsRetriedByTheSDK(t *testing.T) {
	s := sdktest.New(t, http.HandlerFunc(api), throttled)
	require.NoError(t, update(t, items(t, s)))
	signed(t, s)
	requests := s.Requests()
	require.Len(t, requests, 2, s.Summary())
	assert.Equal(t, "attempt=2; max=3", requests[1].Header.Get("Amz-Sdk-Request"))
	assert.Empty(t, requests[1].Header.Get("Retry-Attempt"))

	s = sdktest.New(t, http.HandlerFunc(api), throttled)
	var code *types.ProvisionedThroughputExceededException
	require.True(t, errors.As(update(t, dynamodb.NewFromConfig(config(t, s))), &code), "without a retryer")
	assert.Len(t, s.Requests(), 1)
}

// With the SDK's default retryer, attempts multiply.
func TestRetriesMultiply(t *testing.T) {
	get := func(retryer aws.Retryer) int {
		s := sdktest.New(t, http.HandlerFunc(api), slices.Repeat([]sdktest.Fault{internal}, 20)...)
		cfg := config(t, s)
		p := policy()
		p.Backoff, p.Budget = strategies.Constant{Wait: time.Millisecond}, httpretry.Unlimited{}
		transport, err := httpretry.New(httpretry.Config{Policy: p})
		require.NoError(t, err)
		cfg.HTTPClient = &http.Client{Transport: transport}
		if retryer != nil {
			cfg.Retryer = func() aws.Retryer { return retryer }
		}
		_, err = dynamodb.NewFromConfig(cfg).GetItem(t.Context(), &dynamodb.GetItemInput{TableName: aws.String("table"), Key: key("1")})
		require.Error(t, err)
		return len(s.Requests())
	}
	quick := func(o *retry.StandardOptions) {
		o.Backoff = retry.BackoffDelayerFunc(func(int, error) (time.Duration, error) { return 0, nil })
	}
	assert.Equal(t, 3, get(nil))
	assert.Equal(t, 3, get(retry.NewStandard(throttlesOnly, quick)))
	assert.Equal(t, 9, get(retry.NewStandard(quick)))
}
