#!/usr/bin/env bash
# Lets the agent look at the real GPU of this machine without changing anything: inventory,
# placements, instances, one sample of the figures, and what this account may do. What it printed is
# kept as a fixture, which tests read (load-tests/tests/gpu_fixtures.rs). As root it looks a second
# time as `nobody`, who has no permission for MIG.
#
#   load-tests/gpu/read-only.sh [FOLDER]     FOLDER: where to keep it; by default fixtures/ next to this
#
# TESSERA_AGENT: the agent's program; TESSERA_NVML: NVIDIA's library. Without a GPU it reports that and
# ends well: nothing was checked then.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-$here/fixtures}
agent=${TESSERA_AGENT:-$here/../../target/release/tessera-agent}
library=${TESSERA_NVML:-$(ldconfig -p 2>/dev/null | awk '/libnvidia-ml\.so\.1 /{print $NF; exit}')}

skip() { echo "skipped: $*"; exit 0; }

[ -x "$agent" ] || { echo "no agent at $agent: ./x build makes one" >&2; exit 1; }
[ -n "$library" ] || skip "no libnvidia-ml.so.1 here, so no NVIDIA driver"
[ -e "$library" ] || skip "there is no $library"
if [ -z "${TESSERA_NVML:-}" ] && ! ls /dev/nvidia[0-9]* >/dev/null 2>&1; then
  skip "a driver's library, but no GPU: no /dev/nvidia0"
fi
mkdir -p "$folder"
look() { # look SUFFIX COMMAND...
  local suffix=$1 seen name
  shift
  seen=$(mktemp)
  if ! "$@" inspect --nvml "$library" >"$seen"; then
    echo "the driver refused to list its GPUs:" >&2
    cat "$seen" >&2
    rm -f "$seen"
    return 1
  fi
  # Named after the first GPU: "NVIDIA H200" becomes nvidia-h200.
  name=$(sed -n 's/^ *"model": "\(.*\)",$/\1/p' "$seen" | head -1 | tr 'A-Z ' 'a-z-' | tr -cd 'a-z0-9-')
  if grep -q '^  "gpus": \[\]' "$seen"; then
    rm -f "$seen"
    skip "the driver lists no GPU"
  fi
  # One that may not be read has no name.
  name=${name:-unread}
  # What identifies this very GPU is of no use in a fixture.
  sed -E 's/(GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-/\1-00000000-0000-0000-0000-/g' \
    "$seen" >"$folder/$name$suffix.json"
  rm -f "$seen"
  echo "$folder/$name$suffix.json: this agent $(sed -n 's/^  "may": "\(.*\)",$/\1/p' "$folder/$name$suffix.json")"
}
look "" "$agent"
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
  look -nobody setpriv --reuid=65534 --regid=65534 --clear-groups "$agent" ||
    echo "as nobody the driver can't be queried at all"
fi
