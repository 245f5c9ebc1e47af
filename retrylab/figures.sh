#!/usr/bin/env bash
# Makes the figures in docs/figures. With the argument map, it also makes that of
# map, which differs a little between runs and takes some minutes.
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
go build -o "$work/retrylab" .
figures=../docs/figures
mkdir -p "$figures"

# figure NAME NUMBER COMMAND...: the chart of that number of a report.
figure() {
	local name=$1 number=$2
	shift 2
	"$work/retrylab" "$@" -svg="$work" >/dev/null
	mv "$work/$1-$number.svg" "$figures/$name.svg"
}

figure arrivals 1 plot -strategies=Exponential,EqualJitter,FullJitter,DecorrelatedV2,AWSDecorrelated
figure calls 1 contention
figure time 2 contention
figure budgets 1 outage
figure processes 2 outage -processes=5,20,100,400 -budgets=default -length=200s
figure chain 1 layers -failures=down
figure policy 1 policy -timeout=2s
if [ "${1-}" = map ]; then
	figure map 1 map
fi
