package multiply

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	claude "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/cloudflare/cloudflare-go/v6/dns"
	cloudflare "github.com/cloudflare/cloudflare-go/v6/option"
	"github.com/getsentry/sentry-go"
	"github.com/go-resty/resty/v2"
	"github.com/google/go-github/v89/github"
	"github.com/hashicorp/vault/api"
	"github.com/hetznercloud/hcloud-go/v2/hcloud"
	"github.com/line/line-bot-sdk-go/v8/linebot/messaging_api"
	"github.com/openai/openai-go/v3"
	"github.com/openai/openai-go/v3/option"
	"github.com/slack-go/slack"
	"github.com/stretchr/testify/require"
	"github.com/stripe/stripe-go/v85"
	twilio "github.com/twilio/twilio-go/client"
	twilioapi "github.com/twilio/twilio-go/rest/api/v2010"
	voice "github.com/twilio/twilio-go/rest/voice/v3"
	gitlab "gitlab.com/gitlab-org/api/client-go/v2"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
)

// unixIn returns a time as a number, in seconds from now.
func unixIn(seconds int) string {
	return strconv.FormatInt(time.Now().Add(time.Duration(seconds)*time.Second).Unix(), 10)
}

// go-github has no retries but for one that a context turns on.
func callGithub(s sdk) error {
	client, err := github.NewClient(github.WithTransport(s.client.Transport),
		github.WithEnterpriseURLs(server, server))
	require.NoError(s.t, err)
	if s.retries {
		s.Context = context.WithValue(s.Context,
			github.SleepUntilPrimaryRateLimitResetWhenRateLimited, true)
	}
	_, _, err = client.Repositories.Get(s, "o", "r")
	return err
}

func callStripe(s sdk) error {
	config := &stripe.BackendConfig{HTTPClient: s.client, URL: stripe.String(server),
		LeveledLogger: &stripe.LeveledLogger{}}
	if !s.retries {
		config.MaxNetworkRetries = stripe.Int64(0)
	}
	client := stripe.NewClient("sk_test", stripe.WithBackends(stripe.NewBackendsWithConfig(config)))
	_, err := client.V1Balance.Retrieve(s, nil)
	return err
}

func callOpenAI(s sdk) error {
	options := []option.RequestOption{option.WithAPIKey("sk-test"), option.WithBaseURL(server),
		option.WithHTTPClient(s.client)}
	if !s.retries {
		options = append(options, option.WithMaxRetries(0))
	}
	client := openai.NewClient(options...)
	if s.write {
		_, err := client.Files.New(s, openai.FileNewParams{
			File: strings.NewReader("{}"), Purpose: openai.FilePurposeBatch})
		return err
	}
	_, err := client.Models.Get(s, "m")
	return err
}

// oauth2 sends the secret in another way if the first one fails.
func callOAuth2(s sdk) error {
	config := clientcredentials.Config{ClientID: "id", ClientSecret: "secret", TokenURL: server}
	if !s.retries {
		config.AuthStyle = oauth2.AuthStyleInHeader
	}
	_, err := config.Token(context.WithValue(s.Context, oauth2.HTTPClient, s.client))
	return err
}

// resty has no retries by default. They begin with errors, and statuses are a
// matter of a condition.
func callResty(s sdk) error {
	client := resty.New().SetTransport(s.client.Transport)
	if s.retries {
		client.SetRetryCount(2).AddRetryCondition(
			func(r *resty.Response, _ error) bool { return r.IsError() })
	}
	request := client.R().SetContext(s)
	send := request.Get
	if s.write {
		send = request.SetBody("{}").Post
	}
	resp, err := send(server)
	if err == nil && resp.IsError() {
		return errors.New(resp.Status())
	}
	return err
}

func callKubernetes(s sdk) error {
	core, err := corev1.NewForConfigAndClient(&rest.Config{Host: server, QPS: -1}, s.client)
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

func callGitLab(s sdk) error {
	options := []gitlab.ClientOptionFunc{gitlab.WithBaseURL(server), gitlab.WithHTTPClient(s.client)}
	if !s.retries {
		options = append(options, gitlab.WithoutRetries())
	}
	client, err := gitlab.NewClient("glpat-test", options...)
	require.NoError(s.t, err)
	if s.write {
		_, _, err = client.Issues.CreateIssue(1, new(gitlab.CreateIssueOptions), gitlab.WithContext(s))
		return err
	}
	_, _, err = client.Projects.GetProject(1, nil, gitlab.WithContext(s))
	return err
}

func callVault(s sdk) error {
	config := api.DefaultConfig()
	config.Address, config.HttpClient.Transport = server, s.client.Transport
	if !s.retries {
		config.MaxRetries = 0
	}
	client, err := api.NewClient(config)
	require.NoError(s.t, err)
	if s.write {
		_, err = client.KVv2("secret").Put(s, "path", map[string]any{"value": "new"})
		return err
	}
	_, err = client.KVv2("secret").Get(s, "path")
	return err
}

func callAnthropic(s sdk) error {
	options := []claude.RequestOption{claude.WithAPIKey("sk-test"), claude.WithBaseURL(server),
		claude.WithHTTPClient(s.client)}
	if !s.retries {
		options = append(options, claude.WithMaxRetries(0))
	}
	client := anthropic.NewClient(options...)
	_, err := client.Messages.New(s, anthropic.MessageNewParams{Model: "m", MaxTokens: 1,
		Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("?"))}})
	return err
}

func callCloudflare(s sdk) error {
	options := []cloudflare.RequestOption{cloudflare.WithAPIToken("test"),
		cloudflare.WithBaseURL(server), cloudflare.WithHTTPClient(s.client)}
	if !s.retries {
		options = append(options, cloudflare.WithMaxRetries(0))
	}
	// cloudflare.F would make this package import every service.
	var params dns.RecordGetParams
	params.ZoneID.Value, params.ZoneID.Present = "z", true
	_, err := dns.NewRecordService(options...).Get(s, "r", params)
	return err
}

func callHcloud(s sdk) error {
	options := []hcloud.ClientOption{hcloud.WithEndpoint(server), hcloud.WithToken("test"),
		hcloud.WithHTTPClient(s.client)}
	if !s.retries {
		options = append(options, hcloud.WithRetryOpts(hcloud.RetryOpts{MaxRetries: 0}))
	}
	_, _, err := hcloud.NewClient(options...).Server.GetByID(s, 1)
	return err
}

// slack-go has no retries by default, and those for 5xx are a handler.
func callSlack(s sdk) error {
	options := []slack.Option{slack.OptionAPIURL(server + "/api/"), slack.OptionHTTPClient(s.client)}
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
func callLINE(s sdk) error {
	client, err := messaging_api.NewMessagingApiAPI("test", messaging_api.WithEndpoint(server),
		messaging_api.WithHTTPClient(s.client))
	require.NoError(s.t, err)
	_, err = client.WithContext(s).GetProfile("u")
	return err
}

// twilio-go has no retries for most APIs.
func callTwilio(s sdk) error {
	_, err := twilioapi.NewApiServiceWithClient(twilioClient(s)).FetchMessage("SM1", nil)
	return err
}

// For an API of version v1.0, twilio-go sends the request again if it cannot
// decode an error.
func callTwilioV1(s sdk) error {
	_, err := voice.NewApiServiceWithClient(twilioClient(s)).FetchTranscription("T1")
	return err
}

func twilioClient(s sdk) *twilio.Client {
	client := &twilio.Client{
		Credentials: twilio.NewCredentials("AC1", "secret"), HTTPClient: s.client}
	client.SetAccountSid("AC1")
	return client
}

// sentry-go has no retries, and reports no failures.
func callSentry(s sdk) error {
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
