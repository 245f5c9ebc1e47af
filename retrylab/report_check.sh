#!/usr/bin/env bash
# Opens the reports of all commands in headless Chromium, in light and dark and
# on a phone. It fails on messages in the console and on charts that are not
# drawn. The screenshots are in the folder that is given, or in screenshots.
set -euo pipefail
cd "$(dirname "$0")"

if ! command -v chromium >/dev/null; then
	sudo=()
	[ "$(id -u)" -eq 0 ] || sudo=(sudo)
	"${sudo[@]}" apt-get update -q
	"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
		apt-get install -y -q --no-install-recommends chromium fonts-dejavu-core
fi
RETRYLAB_SCREENSHOTS=$(realpath -m "${1:-screenshots}")
export RETRYLAB_SCREENSHOTS
mkdir -p "$RETRYLAB_SCREENSHOTS"
go test -count=1 -run TestReportsInBrowser -timeout 10m .
ls "$RETRYLAB_SCREENSHOTS"
