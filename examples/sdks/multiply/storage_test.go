package multiply

import (
	"bytes"
	"errors"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob"
	"github.com/aws/aws-sdk-go-v2/aws"
	awscredentials "github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/elastic/elastic-transport-go/v8/elastictransport"
	"github.com/elastic/go-elasticsearch/v9"
	"github.com/elastic/go-elasticsearch/v9/esapi"
	"github.com/meilisearch/meilisearch-go"
	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
	"github.com/opensearch-project/opensearch-go/v4"
	"github.com/opensearch-project/opensearch-go/v4/opensearchapi"
	"github.com/stretchr/testify/require"
	"google.golang.org/api/googleapi"
	"google.golang.org/api/option"
	"google.golang.org/api/storage/v1"
)

func callMinio(s sdk) error {
	options := &minio.Options{Creds: credentials.NewStaticV4("key", "secret", ""),
		Transport: s.client.Transport, Region: "us-east-1"}
	if !s.retries {
		options.MaxRetries = 1
	}
	client, err := minio.New(strings.TrimPrefix(server, "http://"), options)
	require.NoError(s.t, err)
	_, err = client.StatObject(s, "bucket", "key", minio.StatObjectOptions{})
	return err
}

func callAWS(s sdk) error {
	config := aws.Config{Region: "us-east-1", BaseEndpoint: aws.String(server), HTTPClient: s.client,
		Credentials: awscredentials.NewStaticCredentialsProvider("key", "secret", "")}
	if !s.retries {
		config.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	}
	object := &s3.GetObjectInput{Bucket: aws.String("b"), Key: aws.String("k")}
	_, err := s3.NewFromConfig(config).GetObject(s, object)
	return err
}

func callAzblob(s sdk) error {
	options := azcore.ClientOptions{Transport: s.client}
	if !s.retries {
		options.Retry = policy.RetryOptions{MaxRetries: -1}
	}
	client, err := azblob.NewClientWithNoCredential(server,
		&azblob.ClientOptions{ClientOptions: options})
	require.NoError(s.t, err)
	if s.write {
		blob := client.ServiceClient().NewContainerClient("container").NewAppendBlobClient("blob")
		_, err = blob.AppendBlock(s, streaming.NopCloser(strings.NewReader("block")), nil)
		return err
	}
	_, err = client.DownloadStream(s, "container", "blob", nil)
	return err
}

// storage/v1 retries the chunks of an upload and nothing else.
func callGoogleStorage(s sdk) error {
	service, err := storage.NewService(s, option.WithHTTPClient(s.client), option.WithEndpoint(server))
	require.NoError(s.t, err)
	call := service.Objects.Insert("bucket", &storage.Object{Name: "object"})
	if !s.retries {
		call = call.WithRetry(nil, func(error) bool { return false })
	}
	content := bytes.NewReader(make([]byte, 256<<10+1))
	_, err = call.Media(content, googleapi.ChunkSize(256<<10)).Context(s).Do()
	return err
}

// documents are a _bulk that adds a document without an id.
const documents = "{\"index\":{}}\n{}\n"

func callElasticsearch(s sdk) error {
	options := []elastictransport.Option{elastictransport.WithTransport(s.client.Transport)}
	if !s.retries {
		options = append(options, elastictransport.WithDisableRetry())
	}
	client, err := elasticsearch.New(elasticsearch.WithAddresses(server),
		elasticsearch.WithTransportOptions(options...))
	require.NoError(s.t, err)
	var resp *esapi.Response
	if s.write {
		resp, err = client.Bulk(strings.NewReader(documents), client.Bulk.WithContext(s))
	} else {
		resp, err = client.Search(client.Search.WithContext(s),
			client.Search.WithBody(strings.NewReader("{}")))
	}
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.IsError() {
		return errors.New(resp.Status())
	}
	return nil
}

func callOpenSearch(s sdk) error {
	// Its requests for the state of the node would use the budget, too.
	s.t.Setenv("OPENSEARCH_GO_NODE_STATS_INTERVAL", "-1s")
	client, err := opensearchapi.NewClient(opensearchapi.Config{Client: opensearch.Config{
		Addresses: []string{server}, Transport: s.client.Transport,
		DisableRetry: !s.retries, Context: s}})
	require.NoError(s.t, err)
	defer client.Close()
	if s.write {
		_, err = client.Bulk(s, opensearchapi.BulkReq{Body: strings.NewReader(documents)})
		return err
	}
	_, err = client.Search(s, &opensearchapi.SearchReq{Body: strings.NewReader("{}")})
	return err
}

func callMeilisearch(s sdk) error {
	options := []meilisearch.Option{meilisearch.WithCustomClient(s.client)}
	if !s.retries {
		options = append(options, meilisearch.DisableRetries())
	}
	client := meilisearch.New(server, options...)
	_, err := client.Index("books").SearchWithContext(s, "q", new(meilisearch.SearchRequest))
	return err
}
