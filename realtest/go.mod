module github.com/seed421102f4/httpretry/realtest

go 1.26.0

require (
	github.com/seed421102f4/httpretry v0.0.0
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/time v0.16.0 // indirect
)

replace github.com/seed421102f4/httpretry => ../
