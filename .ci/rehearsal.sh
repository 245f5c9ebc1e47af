#!/usr/bin/env bash
# Rehearses a release: makes its tags in a clone, and installs the modules from
# there as a new user does, with an empty module cache and no checkout.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

path=github.com/seed421102f4/httpretry
# The patch version after the last tag, whatever its API.
last=$(last_version)
version=v0.1.0
[ -z "$last" ] || version=${last%.*}.$((${last##*.} + 1))
export GIT_AUTHOR_NAME=rehearsal GIT_AUTHOR_EMAIL=rehearsal@example.com
export GIT_COMMITTER_NAME=rehearsal GIT_COMMITTER_EMAIL=rehearsal@example.com
part .ci/release.sh -into "$work/clone" "$version"

# The go command makes a module's zip from a tag of the public repository, and
# from the clone in the same way.
export GOPRIVATE=$path GOWORK=off GOFLAGS=-modcacherw GOMODCACHE=$work/cache GOBIN=$work/bin
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.$work/clone/.insteadOf" GIT_CONFIG_VALUE_0="https://$path"

step "rehearsal: the modules' files"
mkdir "$work/user"
cd "$work/user"
go mod init example.com/user
for module in "$path" "$path/otelretry" "$path/redisbudget" "$path/retrylab"; do
	dir=$(retry go mod download -json "$module@$version" | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
	[ -s "$dir/LICENSE" ] || fail "$module has no LICENSE"
	[ -s "$dir/README.md" ] || fail "$module has no README.md"
	large=$(find "$dir" -path '*/testdata/*' -size +1M)
	[ -z "$large" ] || fail "$module has large test data: $large"
	! grep -q '^replace' "$dir/go.mod" || fail "$module replaces a module"
	du -sh "$dir"
done

step "rehearsal: a new user's program"
cat >main.go <<'GO'
package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/seed421102f4/httpretry"
)

func main() {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests++; requests == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: new(httpretry.RetryTransport)}
	resp, err := client.Get(server.URL)
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, "attempts:", httpretry.ResultOf(resp).Attempts)
}
GO
retry go get "$path@$version"
[ "$(go run .)" = "200 attempts: 2" ] || fail "the program does not work"
retry go mod tidy
required=$(sed -n 's/^\t\([^ ]*\) .*indirect$/\1/p' go.mod | sort | xargs)
[ "$required" = "github.com/hashicorp/go-cleanhttp" ] || fail "the core requires: $required"

step "rehearsal: the other modules"
cat >more.go <<'GO'
package main

import (
	"github.com/seed421102f4/httpretry/otelretry"
	"github.com/seed421102f4/httpretry/redisbudget"
)

var (
	_ otelretry.Config
	_ redisbudget.Config
)
GO
retry go get "$path/otelretry@$version" "$path/redisbudget@$version"
go vet .
[ "$(go run .)" = "200 attempts: 2" ] || fail "the program does not work with the other modules"
# go mod tidy sorts the requirements into direct and indirect ones.
requirements() { sed -n 's/^\(require \|\t\)\([^ ]* v[^ ]*\).*/\2/p' go.mod | sort; }
before=$(requirements)
retry go mod tidy
diff <(echo "$before") <(requirements) || fail "go mod tidy changes the requirements after go get"

step "rehearsal: retrylab"
cd "$work"
retry go install "$path/retrylab@$version"
"$work/bin/retrylab" plot >/dev/null
go run "$path/retrylab@$version" plot | head -3
end_step
