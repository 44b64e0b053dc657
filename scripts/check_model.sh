#!/usr/bin/env bash
# Spin over docs/model/commit.pml: no error in the protocol, and every mutant refuted. Prints the states of each run.
# With --full also the largest configuration (some minutes and gigabytes).
set -euo pipefail
model=$(cd "$(dirname "$0")/.." && pwd)/docs/model/commit.pml
command -v spin >/dev/null || { echo "error: spin is not installed; run scripts/install_services.sh" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

# prints "errors states"; anything else than a finished search is a failure
search() {
  spin -a "$@" "$model" >spin.log 2>&1 || { cat spin.log >&2; exit 1; }
  gcc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=8000 -o pan pan.c
  ./pan -E -m1000000 -c1 >pan.log 2>&1 || true
  if grep -qE 'max search depth too small|out of memory|reached -DMEMLIM' pan.log; then tail -20 pan.log >&2; exit 1; fi
  sed -nE 's/.*errors: ([0-9]+).*/\1/p; s/^ *([0-9.e+]+) states, stored.*/\1/p' pan.log | tr '\n' ' '
  echo
}

configurations=("-DR=1" "-DATT=2" "-DCRASHES=0 -DRETURNS=0")
if [ "${1:-}" = --full ]; then configurations+=("-DATT=3"); fi
for configuration in "${configurations[@]}"; do
  read -r errors states < <(search $configuration)
  echo "protocol ${configuration}: errors ${errors}, states ${states}"
  [ "$errors" = 0 ] || { tail -30 pan.log >&2; exit 1; }
done
mutants=$(grep -oE '#if(n)?def [A-Z_]{6,}' "$model" | sed -E 's/#ifn?def //' | grep -vE '^(CRASHES|RETURNS)$' | sort -u)
for mutant in $mutants; do
  refuted=
  for configuration in "${configurations[@]:0:3}"; do
    read -r errors states < <(search $configuration "-D$mutant")
    if [ "$errors" != 0 ]; then refuted="$configuration"; break; fi
  done
  [ -n "$refuted" ] || { echo "error: mutant $mutant is not refuted" >&2; exit 1; }
  echo "mutant $mutant: refuted with $refuted after $states states"
done
