// Aws stores an object in S3 and reads an item of DynamoDB, with the retries
// of httpretry in place of the SDK's.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb/types"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/seed421102f4/httpretry"
)

// configure returns cfg with httpretry at work. In a program of yours, cfg is
// what config.LoadDefaultConfig returned.
func configure(cfg aws.Config, retries httpretry.Config) (aws.Config, error) {
	transport, err := httpretry.New(retries)
	if err != nil {
		return cfg, err
	}
	// The SDK signs above the transport, so each attempt has the same
	// signature: valid for 15 minutes in S3 and 5 elsewhere, which all the waits
	// of a request must fit into. It does not cover Retry-Attempt. The SDK's own
	// Amz-Sdk-Request says attempt=1 on each.
	cfg.HTTPClient = &http.Client{Transport: transport}
	// The SDK makes up to 3 attempts, each of which would be as many of these.
	cfg.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	return cfg, nil
}

// policy is for 500 and 503, which AWS says to repeat
// (docs.aws.amazon.com/AmazonS3/latest/userguide, Best practices for Amazon S3
// errors; docs.aws.amazon.com/amazondynamodb/latest/developerguide, Error
// handling with DynamoDB).
func policy() httpretry.Policy {
	return httpretry.Policy{
		Idempotent: idempotent,
		// The SDK's bodies have no GetBody, so what is to be sent again is
		// kept. This takes parts of 5 MiB, as S3's upload manager makes them;
		// what is longer is sent once.
		ReplayBuffer: 6 << 20,
	}
}

// idempotent knows the POSTs that may be repeated: those of S3 that delete
// objects or end a multipart upload, and those of DynamoDB that only read, or
// that have a ClientRequestToken, which the SDK sees to. PutItem and DeleteItem
// may be added if yours have no conditions; UpdateItem may not.
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
	case "GetItem", "BatchGetItem", "TransactGetItems", "Query", "Scan", "TransactWriteItems", "ExecuteTransaction":
		return true
	}
	return strings.HasPrefix(operation, "Describe") || strings.HasPrefix(operation, "List")
}

// throttlesOnly leaves to the SDK's retryer what a transport cannot see:
// DynamoDB throttles by a code in the body of a 400. Nothing was executed then,
// so writes are repeated too, and nothing multiplies, since no 400 is repeated
// below. For the adaptive mode, or to have the SDK correct its clock before it
// tries again, leave cfg.Retryer alone and set MaxAttempts: 1 in the Policy.
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
	region := flag.String("region", "us-east-1", "`name` of the region")
	bucket := flag.String("bucket", "example", "`name` of a bucket to write to")
	table := flag.String("table", "example", "`name` of a table whose key is a string named id")
	flag.Parse()
	cfg, err := configure(aws.Config{
		Region: *region,
		Credentials: credentials.NewStaticCredentialsProvider(
			os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY"), os.Getenv("AWS_SESSION_TOKEN")),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenSupported, // as LoadDefaultConfig has it
	}, httpretry.Config{Policy: policy(), Observe: httpretry.LogEvents(slog.Default())})
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	stored, err := s3.NewFromConfig(cfg).PutObject(ctx, &s3.PutObjectInput{
		Bucket: bucket, Key: aws.String("hello.txt"), Body: strings.NewReader("Stored once, however often it was sent.\n"),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("stored hello.txt, ETag", aws.ToString(stored.ETag))
	db := dynamodb.NewFromConfig(cfg, func(o *dynamodb.Options) { o.Retryer = retry.NewStandard(throttlesOnly) })
	item, err := db.GetItem(ctx, &dynamodb.GetItemInput{
		TableName: table, Key: map[string]types.AttributeValue{"id": &types.AttributeValueMemberS{Value: "hello"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("read an item with", len(item.Item), "attributes")
}
