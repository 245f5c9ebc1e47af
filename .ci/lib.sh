# What the scripts of this folder share. They source it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null # nothing here may wait for an answer
export LC_ALL=C.UTF-8
# The limit of ten minutes is for a test that hangs, not for a busy machine.
[[ ${GOFLAGS:-} == *-timeout=* ]] || export GOFLAGS="${GOFLAGS:-} -timeout=30m"

work=$(mktemp -d)
# The table of steps, one line each: seconds, seconds of processors, and name,
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
	printf -- '-- %s: %d s, %d s of processors\n' "$step${1:-}" "$seconds" "$cpu_seconds"
	step=''
}

# table prints the steps with their seconds.
table() {
	printf '\n%8s  %8s\n' seconds processors
	awk -F '\t' '{ printf "%8d  %8d  %s\n", $1, $2, $3; seconds += $1; cpu += $2 }
		END { printf "%8d  %8d  in all\n", seconds, cpu }' "$times"
}

finish() { # status
	local status=$1
	if [ "$status" -eq 0 ]; then end_step; else end_step ' FAILED'; fi
	table
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
	[ "$status" -eq 0 ] || fail "$1 failed"
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

# Modules with so many dependencies that run leaves go fix and staticcheck to
# full.
slow_modules="bench examples/sdks"

is_slow() { [[ " $slow_modules " == *" $1 "* ]]; }

# modules prints the folders of all modules but the one that holds the tools,
# the slow ones last.
modules() {
	local module
	git ls-files -co --exclude-standard -- 'go.mod' '*/go.mod' | grep -v '^.ci/tools/' | xargs -n1 dirname | sort |
		while read -r module; do is_slow "$module" || echo "$module"; done
	printf '%s\n' $slow_modules
}

# readme_command prints the command of the README that runs the tests.
readme_command() {
	grep -m1 -x 'go test .*' README.md || fail "README.md has no line that is a test command"
}

# last_version prints the version that was released last, if there is one.
last_version() { git tag --list 'v*' --sort=-version:refname | grep -Ex 'v[0-9]+\.[0-9]+\.[0-9]+' | head -1 || true; }

# tool PACKAGE builds a program of .ci/tools in $work.
tool() {
	[ -x "$work/${1##*/}" ] || retry go build -modfile=.ci/tools/go.mod -o "$work" "$1"
}

# staticcheck DIR checks a module.
staticcheck() {
	tool honnef.co/go/tools/cmd/staticcheck
	(cd "$1" && "$work/staticcheck" ./...)
}
