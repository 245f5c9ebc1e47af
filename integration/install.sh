#!/usr/bin/env bash
# Installs from Debian what is missing of the programs that the tests of this
# module and of examples/observe need. The tests start the programs themselves,
# so none of them stays running as a service.
set -euo pipefail

services=()
for program in haproxy nginx prometheus; do
	PATH="$PATH:/usr/sbin" command -v "$program" >/dev/null || services+=("$program")
done
missing=("${services[@]}")
command -v chromium >/dev/null || missing+=(chromium fonts-dejavu-core)
if [ ${#missing[@]} -eq 0 ]; then
	echo "haproxy, nginx, prometheus and chromium are there"
	exit 0
fi

sudo=()
[ "$(id -u)" -eq 0 ] || sudo=(sudo)

# While this file is there, the packages' scripts do not start services.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
	trap '"${sudo[@]}" rm -f "$policy"' EXIT
	printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
	"${sudo[@]}" chmod +x "$policy"
fi

"${sudo[@]}" apt-get update -q
# Another program may be installing, such as the system's updates.
"${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 \
	install -y -q --no-install-recommends "${missing[@]}"

# Nor are they started with the system.
if [ -d /run/systemd/system ] && [ ${#services[@]} -gt 0 ]; then
	"${sudo[@]}" systemctl disable --now "${services[@]}"
fi
