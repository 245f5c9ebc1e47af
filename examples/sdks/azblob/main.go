// Azblob stores a blob in Azure Storage. httpretry retries instead of the SDK.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"slices"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"

	"github.com/seed421102f4/httpretry"
)

// recommended retries 500 InternalError and OperationTimedOut, and 503
// ServerBusy (learn.microsoft.com/rest/api/storageservices, Status and error
// codes), as the default does. It follows X-Ms-Retry-After-Ms and Retry-After.
func recommended() httpretry.Policy {
	return httpretry.Policy{MaxAttempts: 4, Idempotent: idempotent}
}

// idempotent excludes the PUTs that must not be processed twice: one that takes
// a snapshot, one that increments a sequence number, and one that appends a
// block without a condition on its position
// (learn.microsoft.com/rest/api/storageservices, Append Block, Set Blob
// Properties).
func idempotent(req *http.Request) bool {
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

func newClient(endpoint string, key *azblob.SharedKeyCredential, p httpretry.Policy) (*azblob.Client, error) {
	transport, err := httpretry.New(httpretry.Config{
		Policy:  p,
		Observe: httpretry.LogEvents(slog.Default()),
		// The SDK signs a request before it reaches the transport, so all
		// attempts have the same x-ms-date and signature, valid for 15 minutes.
		// The signature covers all headers that begin with x-ms-. AttemptHeader
		// must not begin so.
	})
	if err != nil {
		return nil, err
	}
	return azblob.NewClientWithSharedKeyCredential(endpoint, key, &azblob.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: &http.Client{Transport: transport},
		// A negative value turns the SDK's retries off. By default it makes up
		// to 4 attempts, each of which would be up to 4 here, and it retries
		// every request, even if that is not safe.
		Retry: policy.RetryOptions{MaxRetries: -1},
	}})
}

func main() {
	endpoint := flag.String("endpoint", "http://127.0.0.1:10000/devstoreaccount1", "`URL` of the storage account")
	container := flag.String("container", "example", "`name` of a container to write to")
	flag.Parse()
	key, err := azblob.NewSharedKeyCredential(os.Getenv("AZURE_STORAGE_ACCOUNT"), os.Getenv("AZURE_STORAGE_KEY"))
	if err != nil {
		log.Fatal(err)
	}
	client, err := newClient(*endpoint, key, recommended())
	if err != nil {
		log.Fatal(err)
	}
	ctx := context.Background()
	if _, err := client.UploadBuffer(ctx, *container, "hello.txt", []byte("Stored once, even if it was sent twice.\n"), nil); err != nil {
		log.Fatal(err)
	}
	fmt.Println("stored hello.txt")
}
