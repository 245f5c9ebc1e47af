package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/sdktest"
)

func Example() {
	main()
	// Output:
	// attempt 1: PUT /bucket/key: 503 Service Unavailable
	// attempt 2: PUT /bucket/key: 200 OK
	// stored
}

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

// suite checks that all attempts of a request have the same signature.
var suite = sdktest.Suite[clients]{
	Service: api,
	Client: func(t testing.TB, s *sdktest.Server, p httpretry.Policy) (clients, error) {
		base := &http.Transport{}
		if s.TLS != nil { // HTTP/1.1, as with S3
			base.TLSClientConfig = s.Client().Transport.(*http.Transport).TLSClientConfig.Clone()
			base.TLSClientConfig.NextProtos = nil
		}
		t.Cleanup(base.CloseIdleConnections)
		cfg, err := configure(s.URL, httpretry.Config{Base: base, Policy: p})
		return clients{cfg,
			s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true }),
			dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) { o.Retryer = retry.NewStandard(throttlesOnly, quick) }),
		}, err
	},
	Policy: policy(),
	Check: func(t testing.TB, r *sdktest.Request) {
		assert.Contains(t, r.Header.Get("Authorization"), "Signature=")
		assert.NotContains(t, strings.ToLower(r.Header.Get("Authorization")), "retry-attempt")
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
	_, err := c.objects.GetObject(ctx, &s3.GetObjectInput{Bucket: bucket, Key: name})
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
		"executed, reset": sdktest.Once(sdktest.Lost, 2, 2, 1, 2, 1, 2),
		"throttled":       sdktest.Once(throttled, 1, 1, 1, 2, 2, 2),
	})
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

// A stream is sent with its checksum in a trailer, which needs TLS. Bodies from
// memory and from files have no GetBody here.
func TestUploads(t *testing.T) {
	s := suite
	s.TLS = true
	s.Uploads(t, 3<<20, []sdktest.Fault{slowDown, sdktest.Reset},
		func(ctx context.Context, c clients, body io.Reader) error { return put(ctx, c, body, 3<<20) })
}
