module github.com/seed421102f4/httpretry/conformance

go 1.26.0

require (
	github.com/PuerkitoBio/rehttp v1.4.0
	github.com/failsafe-go/failsafe-go v0.9.8
	github.com/hashicorp/go-retryablehttp v0.7.8
	github.com/seed421102f4/httpretry v0.0.0
	golang.org/x/net v0.62.0
	resty.dev/v3 v3.0.0-rc.4
)

require (
	github.com/bits-and-blooms/bitset v1.24.4 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/influxdata/tdigest v0.0.1 // indirect
	golang.org/x/text v0.43.0 // indirect
)

replace github.com/seed421102f4/httpretry => ../
