#!/usr/bin/env bash
# Servers that the service lane runs against, from the distribution: etcd (control plane) and spin (model checker).
set -euo pipefail
packages=(etcd-server spin gcc libc6-dev)
missing=()
for package in "${packages[@]}"; do
  dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then exit 0; fi
run=()
if [ "$(id -u)" != 0 ]; then run=(sudo); fi
export DEBIAN_FRONTEND=noninteractive
# services of the distribution must not start by themselves: tests start their own, on ports of their own
printf '#!/bin/sh\nexit 101\n' | "${run[@]}" tee /usr/sbin/policy-rc.d >/dev/null
"${run[@]}" chmod +x /usr/sbin/policy-rc.d
trap '"${run[@]}" rm -f /usr/sbin/policy-rc.d' EXIT
for try in 1 2 3; do
  if "${run[@]}" apt-get update -qq && "${run[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}"; then exit 0; fi
  echo "installing ${missing[*]} failed (try $try)" >&2
  sleep 5
done
echo "error: ${missing[*]} cannot be installed; the service lane needs them" >&2
exit 1
