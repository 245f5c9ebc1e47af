#!/usr/bin/env bash
# Runs the tests of modules that others wrote, unchanged, with httpretry below
# every http.Client, after a control with a wrapper that does nothing. It needs
# nothing but Go. Arguments are passed on: see go run ./nethttp -help.
set -euo pipefail
cd "$(dirname "$0")"

# With CI set, websocket's TestWasm wants a browser; without, it is skipped.
unset CI

# Vault's TestLifetimeWatcher waits for more than a minute, and sends nothing.
go run ./nethttp -modes nothing,zero,timeout,watched -skip '^TestLifetimeWatcher$' "$@" \
	connectrpc.com/connect@v1.21.1 \
	github.com/coder/websocket@v1.8.15 \
	golang.org/x/oauth2@v0.37.0 \
	github.com/hashicorp/vault/api@v1.23.0 \
	github.com/slack-go/slack@v0.35.0
