module github.com/seed421102f4/httpretry/examples/sdks

go 1.26.0

replace github.com/seed421102f4/httpretry => ../../
