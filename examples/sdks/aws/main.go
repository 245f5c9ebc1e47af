// Aws stores an object in S3. Its first request fails, and httpretry retries
// instead of the SDK. For DynamoDB, see throttlesOnly.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/examples/sdks/internal/flaky"
)

// configure returns a configuration for url. In other programs, it changes the
// result of config.LoadDefaultConfig.
func configure(url string, retries httpretry.Config) (cfg aws.Config, err error) {
	transport, err := httpretry.New(retries)
	if err != nil {
		return cfg, err
	}
	cfg = aws.Config{Region: "us-east-1", BaseEndpoint: &url,
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", ""),
		// The default of LoadDefaultConfig.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported}
	// The SDK signs a request before it reaches the transport, so all attempts
	// have the same signature. It is valid for 15 minutes in S3 and for 5
	// elsewhere, so keep the waits of a request shorter. Retry-Attempt is not
	// signed. The SDK's header Amz-Sdk-Request says attempt=1 in each.
	cfg.HTTPClient = &http.Client{Transport: transport}
	// The SDK makes up to 3 attempts. Each of them would be up to 3 here.
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	return cfg, nil
}

// policy retries 500 and 503, as AWS recommends
// (docs.aws.amazon.com/AmazonS3/latest/userguide, Best practices for Amazon S3
// errors; docs.aws.amazon.com/amazondynamodb/latest/developerguide, Error
// handling with DynamoDB).
func policy() httpretry.Policy {
	return httpretry.Policy{
		Idempotent: idempotent,
		// The SDK's bodies have no GetBody, so the transport keeps a copy to
		// send again. This is enough for the parts of 5 MiB that S3's upload
		// manager sends. A longer body is sent once.
		ReplayBuffer: 6 << 20,
		// An object whose transfer breaks off is continued where it broke off,
		// as long as the signature is valid. Range is not signed.
		Resume: true,
	}
}

// idempotent accepts some POSTs as well: those of S3 that delete objects or
// complete a multipart upload, and those of DynamoDB that only read or have a
// ClientRequestToken, which the SDK sets. PutItem and DeleteItem without
// conditions may be added, UpdateItem may not.
func idempotent(req *http.Request) bool {
	if req.Method != http.MethodPost {
		return httpretry.Idempotent(req)
	}
	_, operation, found := strings.Cut(req.Header.Get("X-Amz-Target"), "DynamoDB_20120810.")
	if !found {
		query := req.URL.Query()
		return query.Has("delete") || query.Has("uploadId")
	}
	switch operation {
	case "GetItem", "BatchGetItem", "TransactGetItems", "Query", "Scan",
		"TransactWriteItems", "ExecuteTransaction":
		return true
	}
	return strings.HasPrefix(operation, "Describe") || strings.HasPrefix(operation, "List")
}

// throttlesOnly configures the SDK's retryer for the errors that a transport
// cannot see, since DynamoDB reports throttling in the body of a 400. Such a
// request was not processed, so writes are retried as well. Attempts do not
// multiply, since httpretry does not retry a 400. For the adaptive mode, or to
// let the SDK correct its clock before a retry, keep cfg.Retryer and set
// MaxAttempts: 1 in the Policy.
func throttlesOnly(o *retry.StandardOptions) {
	o.Retryables = []retry.IsErrorRetryable{retry.IsErrorRetryableFunc(func(err error) aws.Ternary {
		var response *awshttp.ResponseError
		if !errors.As(err, &response) || response.HTTPStatusCode() != http.StatusBadRequest {
			return aws.FalseTernary
		}
		return retry.RetryableErrorCode{Codes: retry.DefaultThrottleErrorCodes}.IsErrorRetryable(err)
	})}
}

func main() {
	server := flaky.Server("")
	defer server.Close()
	cfg, err := configure(server.URL, httpretry.Config{Policy: policy(), Observe: flaky.Print})
	if err != nil {
		log.Fatal(err)
	}
	objects := s3.NewFromConfig(cfg, func(o *s3.Options) { o.UsePathStyle = true })
	_, err = objects.PutObject(context.Background(), &s3.PutObjectInput{
		Bucket: aws.String("bucket"), Key: aws.String("key"), Body: strings.NewReader("content")})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stored")
}
