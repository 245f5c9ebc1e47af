module github.com/seed421102f4/httpretry/examples/sdks

go 1.26.0

replace github.com/seed421102f4/httpretry => ../../

require (
	github.com/google/go-github/v89 v89.0.0
	github.com/seed421102f4/httpretry v0.0.0-00010101000000-000000000000
	github.com/stripe/stripe-go/v85 v85.0.0
)

require (
	github.com/google/go-querystring v1.2.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	golang.org/x/time v0.16.0 // indirect
)
