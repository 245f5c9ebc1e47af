#!/usr/bin/env bash
# Runs the core's tests for systems that this machine does not have: other
# processors by QEMU, and Windows by Wine.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

step "emulators"
need qemu-s390x-static qemu-user-static
need wine wine wine64
need x86_64-w64-mingw32-gcc gcc-mingw-w64-x86-64-win32

# Each waits for one slow package, with a processor idle. s390x is big-endian.
for system in arm64:aarch64 s390x:s390x; do
	emulator=qemu-${system#*:}-static
	beside "linux/${system%:*}, by QEMU" env CGO_ENABLED=0 GOARCH="${system%:*}" TEST_EMULATOR="$emulator" \
		go test -count=1 -exec "$emulator" ./...
done

windows() {
	export WINEPREFIX=$work/wine WINEDEBUG=-all
	wineboot -i
	# Wine's server holds the output of this script open.
	trap 'wineserver -k || true' EXIT
	library=$WINEPREFIX/drive_c/windows/system32/bcryptprimitives.dll
	[ ! -e "$library" ] || fail "Wine has bcryptprimitives.dll: remove .ci/bcryptprimitives.c"
	x86_64-w64-mingw32-gcc -shared -o "$library" .ci/bcryptprimitives.c -ladvapi32

	# The first program starts processes of Wine, which hold its output open while
	# any other one runs. go test waits for the end of a pipe, but not of a file.
	cat >"$work/wine.sh" <<-'SH'
	#!/bin/sh
	wine "$@" >"$0.$$" 2>&1
	status=$?
	cat "$0.$$"
	exit $status
	SH
	chmod +x "$work/wine.sh"
	in_wine() { GOOS=windows go test -count=1 -exec "$work/wine.sh" "$@" </dev/null; }

	skipped=
	replaced=
	while IFS='|' read -r package test file change; do
		echo "without .ci/wine.lacks: $test"
		# Some need several tries to fail.
		if in_wine -run "^$test\$" -count=10 -failfast "$package" >"$work/log" 2>&1; then
			! grep -q 'no tests to run' "$work/log" || fail "$package has no $test: change .ci/wine.lacks"
			fail "$test passes in Wine: remove it from .ci/wine.lacks"
		fi
		grep -q -- "^--- FAIL: $test " "$work/log" || { cat "$work/log"; fail "$test does not run in Wine"; }
		if [ -z "$file" ]; then
			skipped+="${skipped:+|}^$test\$"
			continue
		fi
		file=$(go env GOROOT)/src/$file
		changed=$work/$test.go
		sed "$change" "$file" >"$changed"
		! cmp -s "$file" "$changed" || fail "$file has nothing that .ci/wine.lacks changes"
		replaced+="${replaced:+, }\"$file\": \"$changed\""
	done < <(grep -v '^#\|^$' .ci/wine.lacks)
	echo "{\"Replace\": {$replaced}}" >"$work/overlay.json"
	core() { in_wine -overlay "$work/overlay.json" -skip "$skipped" "$@"; }
	if ! core ./... | tee "$work/log"; then
		# Wine now and then reports a reset as the end of the connection.
		again=$(sed -n 's/^FAIL\t\([^\t ]*\).*/\1/p' "$work/log")
		[ -n "$again" ] || fail "no package runs in Wine"
		echo "once more:" $again
		core $again # whole packages: one that broke off has not run all its tests
	fi
}
beside "windows/amd64, by Wine" windows

await
report
