module github.com/seed421102f4/httpretry/examples/fleet

go 1.26.0

replace (
	github.com/seed421102f4/httpretry => ../../
	github.com/seed421102f4/httpretry/redisbudget => ../../redisbudget
)

require (
	github.com/alicebob/miniredis/v2 v2.40.0
	github.com/redis/go-redis/v9 v9.23.0
	github.com/seed421102f4/httpretry v0.0.0-00010101000000-000000000000
	github.com/seed421102f4/httpretry/redisbudget v0.0.0-00010101000000-000000000000
	github.com/stretchr/testify v1.12.1
)

require (
	github.com/cespare/xxhash/v2 v2.3.0 // indirect
	github.com/hashicorp/go-cleanhttp v0.5.2 // indirect
	github.com/yuin/gopher-lua v1.1.1 // indirect
	go.uber.org/atomic v1.12.0 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
	golang.org/x/sys v0.48.0 // indirect
)
