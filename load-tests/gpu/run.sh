#!/usr/bin/env bash
# Measures Tessera on a machine with an NVIDIA driver, python3 and, better, PyTorch. Takes about twelve
# minutes. It changes no setting of a GPU.
#
#   ./run.sh [--out FOLDER] [--only 2,3] [--quick]
#
# --out: where the results go, by default results-DATE here; --only: numbers of the parts to run;
# --quick: few repetitions, to see that everything works.
#
# `./x gpu-pack` packs this with the built programs that it needs (README.md). The exit status is 1 if something
# failed, 2 if it can't begin.
set -u
here=$(cd "$(dirname "$0")" && pwd)

# Number, module, time limit in seconds, title.
parts=(
  "1 inventory 30 driver and MPS inventory"
  "2 interception 90 interception: the shim's counts against others"
  "3 hashes 240 result hashes with and without the shim in each role"
  "4 overhead 120 overhead free, holding and measuring"
  "5 profiles 150 profiles of FIKIT's networks as files for the player"
  "6 switches 60 context switch and time slice"
  "7 pairs 420 pairs A, F, J and findings 1 and 2"
  "8 memory 240 memory: PyTorch's contract, companion, watch, growing programs, models"
  "9 cluster 300 a cluster on this GPU"
)

usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; }
die() { echo "run.sh: $*" >&2; exit 2; }

out=
only=
quick=()
while [ $# -gt 0 ]; do
  case $1 in
    --out) [ $# -ge 2 ] || die "--out needs a folder"; out=$2; shift 2 ;;
    --only) [ $# -ge 2 ] || die "--only needs numbers such as 2,3"; only=$2; shift 2 ;;
    --quick) quick=(--quick); shift ;;
    -h | --help) usage; exit 0 ;;
    *) die "unknown argument $1; use --out FOLDER, --only 2,3 or --quick" ;;
  esac
done
if [ -n "$only" ]; then
  [[ $only =~ ^[1-9](,[1-9])*$ ]] || die "--only takes numbers from 1 to 9 with commas, such as 2,3; not $only"
fi
command -v python3 >/dev/null || die "there is no python3"
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || die "python3 must be 3.9 or newer"
command -v timeout >/dev/null || die "there is no timeout (coreutils)"
out=${out:-$here/results-$(date -u +%Y%m%dT%H%M%SZ)}
mkdir -p "$out" || die "can't make $out"
out=$(cd "$out" && pwd)
rm -f "$out"/machine.json "$out"/[1-9]-*.json "$out"/summary.json
export PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$here${PYTHONPATH:+:$PYTHONPATH}

# One part: it ends within its limit, and a failure is its own.
part() { # TITLE LIMIT MODULE ARGUMENTS...
  local title=$1 limit=$2 module=$3 status
  shift 3
  printf '\n==> %s (at most %s s)\n' "$title" "$limit"
  timeout -k 15 "$limit" python3 -m "gpu_pack.$module" "$@"
  status=$?
  case $status in
    0 | 1) ;;
    124 | 137) echo "  TIMED OUT after $limit s: what it had is in the results" ;;
    *) echo "  FAILED with exit status $status" ;;
  esac
  return $status
}

part "The machine" 120 machine "$out/machine.json" || die "the machine can't be described: nothing else is of use"
ran=()
for line in "${parts[@]}"; do
  read -r number module limit title <<<"$line"
  [ -z "$only" ] || [[ ,$only, == *,$number,* ]] || continue
  ran+=("$number-$module")
  part "$number. $title" "$limit" "$module" --out "$out" "${quick[@]+"${quick[@]}"}"
done
python3 -m gpu_pack.summary "$out" "${ran[@]}"
