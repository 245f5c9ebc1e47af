package sdks

import (
	"bytes"
	"errors"
	"strings"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	claude "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/cloudflare/cloudflare-go/v6/dns"
	cloudflare "github.com/cloudflare/cloudflare-go/v6/option"
	"github.com/getsentry/sentry-go"
	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/line/line-bot-sdk-go/v8/linebot/messaging_api"
	"github.com/meilisearch/meilisearch-go"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/slack-go/slack"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"
	twilio "github.com/twilio/twilio-go/client"
	twilioapi "github.com/twilio/twilio-go/rest/api/v2010"
	voice "github.com/twilio/twilio-go/rest/voice/v3"
	"google.golang.org/api/googleapi"
	gapi "google.golang.org/api/option"
	"google.golang.org/api/storage/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

func callStripe(s setup) error {
	config := &stripe.BackendConfig{HTTPClient: s.client, URL: stripe.String(s.url),
		LeveledLogger: &stripe.LeveledLogger{}}
	if !s.retries {
		config.MaxNetworkRetries = stripe.Int64(0)
	}
	client := stripe.NewClient("sk_test", stripe.WithBackends(stripe.NewBackendsWithConfig(config)))
	_, err := client.V1Balance.Retrieve(s, nil)
	return err
}

func callOpenAI(s setup) error {
	client := openai.NewClient(options(s, option.WithMaxRetries(0), option.WithAPIKey("sk-test"),
		option.WithBaseURL(s.url), option.WithHTTPClient(s.client))...)
	if s.write {
		_, err := client.Files.New(s, openai.FileNewParams{
			File: strings.NewReader("{}"), Purpose: openai.FilePurposeBatch})
		return err
	}
	_, err := client.Models.Get(s, "m")
	return err
}

func callKubernetes(s setup) error {
	core, err := corev1.NewForConfigAndClient(&rest.Config{Host: s.url, QPS: -1}, s.client)
	require.NoError(s.t, err)
	if s.write {
		_, err = core.ConfigMaps("default").Create(s, new(v1.ConfigMap), metav1.CreateOptions{})
		return err
	}
	if s.retries {
		_, err = core.ConfigMaps("default").Get(s, "settings", metav1.GetOptions{})
		return err
	}
	return core.RESTClient().Get().Namespace("default").Resource("configmaps").Name("settings").
		MaxRetries(0).Do(s).Error()
}

func callAnthropic(s setup) error {
	client := anthropic.NewClient(options(s, claude.WithMaxRetries(0), claude.WithAPIKey("sk-test"),
		claude.WithBaseURL(s.url), claude.WithHTTPClient(s.client))...)
	_, err := client.Messages.New(s, anthropic.MessageNewParams{Model: "m", MaxTokens: 1,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("?"))}})
	return err
}

func callCloudflare(s setup) error {
	// cloudflare.F would make this package import every service.
	var params dns.RecordGetParams
	params.ZoneID.Value, params.ZoneID.Present = "z", true
	service := dns.NewRecordService(options(s, cloudflare.WithMaxRetries(0),
		cloudflare.WithAPIToken("test"), cloudflare.WithBaseURL(s.url), cloudflare.WithHTTPClient(s.client))...)
	_, err := service.Get(s, "r", params)
	return err
}

func callHcloud(s setup) error {
	client := hcloud.NewClient(options(s, hcloud.WithRetryOpts(hcloud.RetryOpts{MaxRetries: 0}),
		hcloud.WithEndpoint(s.url), hcloud.WithToken("test"), hcloud.WithHTTPClient(s.client))...)
	_, _, err := client.Server.GetByID(s, 1)
	return err
}

// slack-go has no retries by default, and those for 5xx are a handler.
func callSlack(s setup) error {
	options := []slack.Option{slack.OptionAPIURL(s.url + "/api/"), slack.OptionHTTPClient(s.client)}
	if s.retries {
		config := slack.DefaultRetryConfig()
		config.Handlers = append(slack.AllBuiltinRetryHandlers(config),
			slack.NewServerErrorRetryHandler(config))
		options = append(options, slack.OptionRetryConfig(config))
	}
	_, err := slack.New("xoxb-test", options...).AuthTestContext(s)
	return err
}

// LINE's SDK has no retries.
func callLINE(s setup) error {
	client, err := messaging_api.NewMessagingApiAPI("test", messaging_api.WithEndpoint(s.url),
		messaging_api.WithHTTPClient(s.client))
	require.NoError(s.t, err)
	_, err = client.WithContext(s).GetProfile("u")
	return err
}

// twilio-go has no retries for most APIs.
func callTwilio(s setup) error {
	_, err := twilioapi.NewApiServiceWithClient(twilioClient(s)).FetchMessage("SM1", nil)
	return err
}

// For an API of version v1.0, twilio-go sends the request again if it cannot
// decode an error.
func callTwilioV1(s setup) error {
	_, err := voice.NewApiServiceWithClient(twilioClient(s)).FetchTranscription("T1")
	return err
}

func twilioClient(s setup) *twilio.Client {
	client := &twilio.Client{
		Credentials: twilio.NewCredentials("AC1", "secret"), HTTPClient: s.client}
	client.SetAccountSid("AC1")
	return client
}

// sentry-go has no retries, and reports no failures.
func callSentry(s setup) error {
	client, err := sentry.NewClient(sentry.ClientOptions{
		Dsn: "http://key@service.test/1", HTTPTransport: s.client.Transport})
	require.NoError(s.t, err)
	defer client.Close()
	client.CaptureMessage("m", nil, nil)
	if !client.Flush(time.Minute) {
		s.t.Error("the event was not sent")
	}
	return errors.New("unknown")
}

func callAWS(s setup) error {
	config := aws.Config{Region: "us-east-1", BaseEndpoint: aws.String(s.url), HTTPClient: s.client,
		Credentials: credentials.NewStaticCredentialsProvider("key", "secret", "")}
	if !s.retries {
		config.Retryer = func() aws.Retryer { return aws.NopRetryer{} }
	}
	object := &s3.GetObjectInput{Bucket: aws.String("b"), Key: aws.String("k")}
	_, err := s3.NewFromConfig(config).GetObject(s, object)
	return err
}

// storage/v1 retries the chunks of an upload and nothing else.
func callGoogleStorage(s setup) error {
	service, err := storage.NewService(s, gapi.WithHTTPClient(s.client), gapi.WithEndpoint(s.url))
	require.NoError(s.t, err)
	if s.write {
		return service.Objects.Delete("bucket", "object").Context(s).Do()
	}
	call := service.Objects.Insert("bucket", &storage.Object{Name: "object"})
	if !s.retries {
		call = call.WithRetry(nil, func(error) bool { return false })
	}
	content := bytes.NewReader(make([]byte, 256<<10+1))
	_, err = call.Media(content, googleapi.ChunkSize(256<<10)).Context(s).Do()
	return err
}

func callMeilisearch(s setup) error {
	client := meilisearch.New(s.url,
		options(s, meilisearch.DisableRetries(), meilisearch.WithCustomClient(s.client))...)
	_, err := client.Index("books").SearchWithContext(s, "q", new(meilisearch.SearchRequest))
	return err
}
