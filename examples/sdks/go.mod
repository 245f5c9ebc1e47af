module github.com/seed421102f4/httpretry/examples/sdks

go 1.26.0

replace github.com/seed421102f4/httpretry => ../../

require (
	github.com/elastic/elastic-transport-go/v8 v8.9.0
	github.com/google/go-github/v89 v89.0.0
	github.com/openai/openai-go/v3 v3.95.0
	github.com/seed421102f4/httpretry v0.0.0-00010101000000-000000000000
	github.com/stripe/stripe-go/v85 v85.0.0
)

require (
	github.com/go-logr/logr v1.4.3 // indirect
	github.com/go-logr/stdr v1.2.2 // indirect
	go.opentelemetry.io/auto/sdk v1.1.0 // indirect
	go.opentelemetry.io/otel v1.35.0 // indirect
	go.opentelemetry.io/otel/metric v1.35.0 // indirect
	go.opentelemetry.io/otel/trace v1.35.0 // indirect
	golang.org/x/net v0.60.0 // indirect
)

require (
	github.com/coder/websocket v1.8.15 // indirect
	github.com/elastic/go-elasticsearch/v9 v9.5.2
	github.com/go-resty/resty/v2 v2.17.2
	github.com/google/go-querystring v1.2.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/tidwall/gjson v1.20.0 // indirect
	github.com/tidwall/match v1.1.1 // indirect
	github.com/tidwall/pretty v1.2.1 // indirect
	github.com/tidwall/sjson v1.2.5 // indirect
	golang.org/x/oauth2 v0.37.0
	golang.org/x/time v0.16.0 // indirect
)
