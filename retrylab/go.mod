module github.com/seed421102f4/httpretry/retrylab

go 1.26.0

replace github.com/seed421102f4/httpretry => ../

require (
	github.com/seed421102f4/httpretry v0.0.0-00010101000000-000000000000
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)
