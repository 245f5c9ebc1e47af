#!/usr/bin/env bash
# Rehearses a release: makes its tags in a clone, and installs the modules from
# there as a new user does, with an empty module cache and no checkout. Then it
# rolls the release out to half of a fleet that has the version before.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

path=github.com/seed421102f4/httpretry
# The patch version after the last tag, whatever its API.
last=$(last_version)
version=v0.1.0
[ -z "$last" ] || version=${last%.*}.$((${last##*.} + 1))
export GIT_AUTHOR_NAME=rehearsal GIT_AUTHOR_EMAIL=rehearsal@example.com
export GIT_COMMITTER_NAME=rehearsal GIT_COMMITTER_EMAIL=rehearsal@example.com
# The version before is the last one or, until there is one, this state. The
# next one is this state with a field that policies and their files get.
if [ -n "$last" ]; then
	git clone -q . "$work/before"
else
	last=$version version=v0.1.1
	part .ci/release.sh -into "$work/before" "$last"
fi
git -C "$work/before" checkout -q --detach "$(git rev-parse HEAD)"
sed -i 's/^type Policy struct {$/&\n\tRehearsed bool/' "$work/before/policy.go"
sed -i '/^func newPolicyTable/,/^}/ s/^\treturn table{$/&\n{"rehearsed", "Rehearsed", boolean(), "false", "New."},/' \
	"$work/before/policyfile/table.go"
git -C "$work/before" commit -q -a -m "Add a field"
part "$work/before/.ci/release.sh" -into "$work/clone" "$version"

# The go command makes a module's zip from a tag of the public repository, and
# from the clone in the same way. With -trimpath, it does not compile again what
# it has compiled in another folder.
export GOPRIVATE=$path GOWORK=off GOFLAGS="-modcacherw -trimpath" GOMODCACHE=$work/cache GOBIN=$work/bin
export GIT_CONFIG_COUNT=1 GIT_CONFIG_KEY_0="url.$work/clone/.insteadOf" GIT_CONFIG_VALUE_0="https://$path"

step "rehearsal: the modules' files"
repository=$PWD
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
required=$(sed -n 's/^\(require \|\t\)\([^ ]*\) .*indirect$/\2/p' go.mod | sort | xargs)
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

step "rehearsal: programs of both versions"
cd "$repository"
bash redisbudget/install.sh
mkdir "$work/old" "$work/new" "$work/core"
cp .ci/rehearsal/fleet.go "$work/old"
cd "$work/old"
go mod init example.com/fleet
retry go get "$path@$last" "$path/otelretry@$last" "$path/redisbudget@$last"
retry go mod tidy
cp ./* ../core
cp ./* ../new
(cd ../core && retry go get "$path@$version")
(cd ../new && retry go get "$path@$version" "$path/otelretry@$version" "$path/redisbudget@$version")
# requires FOLDER CORE OTHERS fails if a program has other versions.
requires() {
	local versions
	versions=$(cd "$work/$1" && go list -m -f '{{.Version}}' "$path" "$path/otelretry" "$path/redisbudget" | xargs)
	[ "$versions" = "$2 $3 $3" ] || fail "$1 has the core, otelretry and redisbudget $versions, want $2 $3 $3"
}
requires old "$last" "$last"
requires core "$version" "$last"
requires new "$version" "$version"
for program in old core new; do
	cd "$work/$program"
	go vet . || fail "$program does not build"
	go build -o "../bin/$program" .
done

cd "$work"
"$(command -v redis-server || command -v valkey-server)" --port 0 --unixsocket "$work/redis.sock" \
	--save '' --appendonly no >redis.log &
redis=$!
trap 'status=$?; kill "$redis"; finish "$status"' EXIT
for _ in $(seq 100); do [ -S redis.sock ] || sleep 0.1; done
[ -S redis.sock ] || fail "no Redis: $(cat redis.log)"
cat >policies.json <<'JSON'
{
  "default": {"preset": "fleet", "maxAttempts": 2, "backoff": "Constant Wait=1ms", "rehearsed": true},
  "policies": {"localhost": {"budget": {}}}
}
JSON
! STRICT=1 bin/old redis.sock policies.json 2>strict || fail "the new field is not unknown to $last"
grep -q 'default.rehearsed: unknown field' strict || fail "$last refuses the file for another reason: $(cat strict)"
STRICT=1 bin/new redis.sock policies.json >/dev/null || fail "$version refuses the file"

step "rehearsal: half of a fleet has the version before"
UNKNOWN_BEFORE="[default.rehearsed]" bin/new redis.sock policies.json bin/old bin/new

step "rehearsal: the core alone is upgraded"
UNKNOWN_BEFORE="[]" bin/new redis.sock policies.json bin/core bin/new
UNKNOWN_BEFORE="[default.rehearsed]" bin/new redis.sock policies.json bin/old bin/core
end_step
