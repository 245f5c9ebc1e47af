#!/usr/bin/env bash
# Runs net/http's own tests with httpretry below its clients, after two controls:
# without a wrapper, and with one that does nothing. It needs nothing but Go.
# Arguments are passed on: see go run ./nethttp -help.
set -euo pipefail
cd "$(dirname "$0")"
go run ./nethttp "$@"
