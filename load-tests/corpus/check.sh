#!/bin/bash
# Tries every script of a folder with `tessera submit --test-only`, which stores nothing, and prints how many
# are accepted, with the reasons of the others. Scripts of other people stay outside of this repository:
#
#   load-tests/corpus/check.sh FOLDER [PATH-OF-TESSERA]
#
# It needs a running controller (TESSERA_URL), such as that of `./x demo --keep`. What a cluster doesn't have,
# such as a GPU model, is refused there; TESSERA_CORPUS_OPTIONS=--allow-pending accepts it.
set -u
folder=${1:?give the folder of the scripts}
tessera=${2:-tessera}
options=${TESSERA_CORPUS_OPTIONS:-}
reasons=$(mktemp)
trap 'rm -f "$reasons"' EXIT
total=0
accepted=0
while IFS= read -r -d '' script; do
    grep -q '^#SBATCH' "$script" || continue
    total=$((total + 1))
    # shellcheck disable=SC2086 # several options are several words
    if message=$("$tessera" submit --test-only --quiet $options "$script" 2>&1 >/dev/null </dev/null); then
        accepted=$((accepted + 1))
    else
        printf '%s\t%s\n' "${message##*"${script##*/}":}" "$script" >>"$reasons"
    fi
done < <(find "$folder" -type f -print0 | sort -z)
if [ "$total" = 0 ]; then
    echo "no script in $folder has lines that begin with #SBATCH" >&2
    exit 2
fi
echo "$accepted of $total scripts are accepted ($((accepted * 1000 / total / 10)).$((accepted * 1000 / total % 10)) %)"
cut -f1 "$reasons" | cut -c1-160 | sort | uniq -c | sort -rn
if [ -n "${TESSERA_CORPUS_NAMES:-}" ]; then sort "$reasons"; fi
