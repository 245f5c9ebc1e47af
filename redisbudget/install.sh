#!/usr/bin/env bash
# Installs redis-server from Debian, unless it or valkey-server is there. With
# an argument, it installs that one of the two. The tests start the server
# themselves, so it does not stay running as a service.
set -euo pipefail

programs=(redis-server valkey-server)
[ $# -eq 0 ] || programs=("$1")
for program in "${programs[@]}"; do
	if command -v "$program" >/dev/null; then
		echo "$program is there"
		exit 0
	fi
done
program=${programs[0]}

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)

# While this file is there, the package's scripts do not start services.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap '"${sudo[@]}" rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
	"${sudo[@]}" chmod +x "$policy"
fi

"${sudo[@]}" apt-get update -q

# Debian 12 has Valkey in its backports.
if ! apt-cache show "$program" >/dev/null 2>&1; then
	suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
	repository=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' "Codename: $suite")
	echo "deb ${repository%%$'\n'*} $suite-backports main" |
		"${sudo[@]}" tee "/etc/apt/sources.list.d/$suite-backports.list" >/dev/null
	"${sudo[@]}" apt-get update -q
fi

"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$program"

# Nor is it started with the system.
if [ -d /run/systemd/system ]; then
	"${sudo[@]}" systemctl disable --now "$program"
fi
