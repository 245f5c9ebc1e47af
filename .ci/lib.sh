# What the scripts of this folder share. They source it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null # nothing here may wait for an answer
[ "$(uname)" != Linux ] || export LC_ALL=C.UTF-8 # other systems may not have it
# The limit of ten minutes is for a test that hangs, not for a busy machine.
[[ ${GOFLAGS:-} == *-timeout=* ]] || export GOFLAGS="${GOFLAGS:-} -timeout=30m"

work=$(mktemp -d)
# The table of steps, one line each: seconds, seconds of CPU time, and name,
# with tabs between them.
times=${CI_TIMES:-$work/times}
: >"$times"
step=''

# cpu sets cpu_now to the seconds that processors have spent on this script and
# on the programs that it has waited for. A subshell would not know them.
cpu() {
	times >"$work/cpu"
	cpu_now=$(awk '{ for (i = 1; i <= NF; i++) { split($i, part, /[ms]/); sum += 60 * part[1] + part[2] } }
		END { printf "%.0f", sum }' "$work/cpu")
}

# step NAME begins a step, and ends the one before it.
step() {
	end_step
	step="$*"
	step_began=$SECONDS
	cpu
	step_cpu=$cpu_now
	printf '\n== %s (after %d s)\n' "$step" "$SECONDS"
}

end_step() { # [remark]
	[ -n "$step" ] || return 0
	cpu
	local seconds=$((SECONDS - step_began)) cpu_seconds=$((cpu_now - step_cpu))
	printf '%d\t%d\t%s\n' "$seconds" "$cpu_seconds" "$step${1:-}" >>"$times"
	printf -- '-- %s: %d s, %d s of CPU time\n' "$step${1:-}" "$seconds" "$cpu_seconds"
	step=''
}

# check NAME COMMAND... is a step whose failure does not stop the next ones:
# report tells it at the end. The command runs in a subshell.
failed=()
check() {
	step "$1"
	# Behind || or if, the subshell would go on after an error.
	set +e
	(set -e; "${@:2}")
	checked $?
}

# checked STATUS ends a check.
checked() {
	set -e
	[ "$1" -ne 0 ] || return 0
	failed+=("$step")
	end_step ' FAILED'
}

# beside NAME COMMAND... begins a check that runs beside others, because it
# leaves a processor idle. await ends all of them, and prints their output.
others=()
beside() {
	(set -e; "${@:2}") >"$work/beside.${#others[@]}" 2>&1 &
	others+=("$! $1")
}

await() {
	local i status
	for i in "${!others[@]}"; do
		step "${others[i]#* }"
		status=0
		wait "${others[i]%% *}" || status=$?
		cat "$work/beside.$i"
		checked $status
	done
	others=()
}

# report fails if a check has failed.
report() {
	end_step
	local IFS=';'
	[ ${#failed[@]} -eq 0 ] || fail "${failed[*]}"
	echo "all is well"
}

# finish STATUS ends the script, and prints the table.
finish() {
	local status=$1
	if [ "$status" -eq 0 ]; then end_step; else end_step ' FAILED'; fi
	printf '\n%8s  %8s\n' seconds CPU
	awk -F '\t' '{ printf "%8d  %8d  %s\n", $1, $2, $3; seconds += $1; cpu += $2 }
		END { printf "%8d  %8d  in all\n", seconds, cpu }' "$times"
	rm -rf "$work"
	exit "$status"
}
trap 'finish $?' EXIT

fail() { printf 'FAIL: %s\n' "$*" >&2; exit 1; }

# part SCRIPT [ARGUMENT]... runs another script, whose steps come into the
# table.
part() {
	local status=0
	end_step
	CI_TIMES=$work/part bash "$@" || status=$?
	cat "$work/part" >>"$times"
	[ "$status" -eq 0 ] || { echo "FAIL: $1" >&2 && return 1; }
}

# The go command does not try a download again, and a proxy can be out of reach
# for a moment.
retry() { "$@" || { sleep 20 && "$@"; } || { sleep 60 && "$@"; }; }

# need PROGRAM PACKAGE... installs packages from Debian if the program is missing.
need() {
	local program=$1 sudo=()
	shift
	! PATH="$PATH:/usr/sbin" command -v "$program" >/dev/null || return 0
	[ "$(id -u)" -eq 0 ] || sudo=(sudo)
	retry "${sudo[@]}" apt-get update -q
	# Another program may be installing, such as the system's updates.
	retry "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 \
		install -y -q --no-install-recommends "$@"
}

# tools begins the first step: the programs that all scripts use.
tools() {
	step "tools"
	go version
	need update-ca-certificates ca-certificates
	need git git
}

# Modules with so many dependencies that run leaves lint and go fix to full.
slow_modules="bench conformance examples/sdks"

is_slow() { [[ " $slow_modules " == *" $1 "* ]]; }

# modules prints the folders of all modules but those that hold the tools, the
# slow ones last.
modules() {
	local all module
	all=$(all_modules) || fail "git does not list the modules"
	echo "$all" | grep -v '^\.ci/' | while read -r module; do is_slow "$module" || echo "$module"; done
	printf '%s\n' $slow_modules
}

all_modules() { git ls-files -co --exclude-standard -- go.mod '*/go.mod' | xargs -n1 dirname | sort; }

# touched PATH... reports whether a file there differs from main or, on main,
# from the commit before. If that is unknown, as in a clone of depth 1, it does.
touched() {
	local base
	base=$(git merge-base HEAD origin/main 2>/dev/null || git merge-base HEAD main 2>/dev/null) || base=
	[ -n "$base" ] && [ "$base" != "$(git rev-parse HEAD)" ] || base=$(git rev-parse -q --verify HEAD~1) || return 0
	! git diff --quiet "$base" -- "$@" || [ -n "$(git ls-files -o --exclude-standard -- "$@")" ]
}

# readme_command prints the command of the README that runs the tests.
readme_command() {
	grep -m1 -x 'go test .*' README.md || fail "README.md has no line that is a test command"
}

# last_version prints the version that was released last, if there is one.
last_version() { git tag --list 'v*' --sort=-version:refname | grep -Ex 'v[0-9]+\.[0-9]+\.[0-9]+' | head -1 || true; }

# tool NAME [FOLDER] prints the path of a program of .ci/tools, or of a module
# below. The build cache keeps it.
tool() { retry go tool -modfile=".ci/tools/${2:-}/go.mod" -n "$1"; }

# lint FOLDER checks a module by .golangci.yml, which includes go vet.
lint() {
	local linter
	linter=$(tool golangci-lint lint)
	(cd "$1" && "$linter" run)
}

# show FOLDER PATTERN... runs a program, whose output has to match each pattern.
show() {
	local output expected
	output=$(go -C "$1" run .)
	echo "$output"
	for expected in "${@:2}"; do
		grep -Eq -- "$expected" <<<"$output" || fail "$1 does not show: $expected"
	done
}

# style checks what a reviewer would send back. It needs no more than Go, git and
# bash 3.2, which macOS has.
style() {
	step "gofmt"
	local unformatted folder golden
	unformatted=$(gofmt -l .)
	[ -z "$unformatted" ] || fail "gofmt -w would change: $unformatted"

	step "spelling of Markdown"
	git ls-files -co --exclude-standard '*.md' | xargs "$(tool misspell lint)" -locale US -error

	step "the core: lint"
	lint .

	step "API"
	local changed=''
	for folder in . strategies policies policyfile retrytest retrydebug otelretry redisbudget; do
		golden=.ci/api/$folder.txt
		[ "$folder" != . ] || golden=.ci/api/httpretry.txt
		# The exported declarations: those that go doc prints, without comments.
		go -C "$folder" doc -all . | awk '/^(CONSTANTS|VARIABLES|FUNCTIONS|TYPES)$/ { begun = 1; next }
			begun && NF && !/^ / && !/^\t*\/\// { sub(/ +\/\/ .*/, ""); gsub(/ +/, " "); print }' >"$work/api"
		diff -u "$golden" "$work/api" || {
			cp "$work/api" "$golden"
			changed+=" $golden"
		}
	done
	[ -z "$changed" ] || fail "the API changed, as shown. If that is meant, commit these files, which have it now:$changed"
}
