#!/usr/bin/env bash
# Makes the tags of a release, and pushes nothing:
#
#	bash .ci/release.sh v1.2.3
#
# The core, otelretry, redisbudget and retrylab are released together. On main,
# the three others replace the core by its folder, which nobody else has. So
# their tags are on a commit of their own, whose go.mod requires the released
# core. That commit is not on main.
#
# All of it happens in a clone. The tags get here in one step at the end, so a
# failure leaves nothing behind. rehearsal.sh uses -into DIR, which leaves the
# clone there and skips the checks of what only a release has.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

path=github.com/seed421102f4/httpretry
nested="otelretry redisbudget retrylab"

into=
if [ "${1:-}" = -into ]; then
	into=${2:?want -into DIR VERSION}
	shift 2
fi
[ $# -eq 1 ] || fail "want one argument, a version such as v1.2.3"
version=$1
number='(0|[1-9][0-9]*)'
[[ $version =~ ^v$number\.$number\.$number$ ]] || fail "$version: want a version such as v1.2.3"
# Versions that begin with this must not change or remove a line of the API.
kept=${version%%.*}
[ "$kept" != v0 ] || kept=${version%.*}

last=$(last_version)
if [ -z "$into" ]; then
	step "what a release needs"
	[ "$(git symbolic-ref --short HEAD)" = main ] || fail "want the branch main"
	[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed"
	if [ -n "$last" ]; then
		IFS=. read -r major minor patch <<<"${last#v}"
		case ${version#v} in
		"$major.$minor.$((patch + 1))" | "$major.$((minor + 1)).0" | "$((major + 1)).0.0") ;;
		*) fail "$version does not follow $last" ;;
		esac
	fi
	grep -Eq "^## \[${version#v}\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$" CHANGELOG.md ||
		fail "CHANGELOG.md has no section \"## [${version#v}] - \" with a date"
	[ "$(cat "$(git rev-parse --git-path full-passed)" 2>/dev/null)" = "$(git rev-parse HEAD)" ] ||
		fail ".ci/full has not passed here for this commit"
fi
for tag in "$version" $(printf "%s/$version " $nested); do
	! git rev-parse -q --verify "refs/tags/$tag" >/dev/null || fail "the tag $tag exists"
done

step "the API since ${last:-the beginning}"
if [ -z "$into" ] && [[ $last == "$kept".* ]]; then
	git diff "$last" -- .ci/api >"$work/api"
	! grep '^-[^-]' "$work/api" || fail "$version must not change or remove these lines of the API"
fi

step "the clone"
clone=${into:-$work/clone}
git clone -q . "$clone"
git -C "$clone" checkout -q --detach
git -C "$clone" tag -a "$version" -m "httpretry $version"

# from_clone COMMAND... runs the go command so that it gets the module from the
# clone, as it would from the public repository.
from_clone() {
	env GOWORK=off GOFLAGS=-modcacherw GOPRIVATE="$path" GIT_CONFIG_COUNT=1 \
		GIT_CONFIG_KEY_0="url.$(cd "$clone" && pwd)/.insteadOf" \
		GIT_CONFIG_VALUE_0="https://$path" GOMODCACHE="$work/modcache" "$@"
}

for module in $nested; do
	step "$module"
	(
		cd "$clone/$module"
		from_clone go mod edit -dropreplace "$path" -require "$path@$version"
		retry from_clone go mod tidy
		! grep -q '^replace\|^	[^ ]* => ' go.mod || fail "$module/go.mod has a replace"
		from_clone go vet ./...
	)
done

step "the tags"
git -C "$clone" commit -q -a -m "Require httpretry $version in the modules that are released with it"
for module in $nested; do
	git -C "$clone" tag -a "$module/$version" -m "$module $version"
done
tags=$(git -C "$clone" tag --list "*$version")
if [ -z "$into" ]; then
	git fetch -q --atomic "$clone" $(for tag in $tags; do echo "refs/tags/$tag:refs/tags/$tag"; done)
	echo "To publish: git push --atomic origin" $tags
fi
end_step
