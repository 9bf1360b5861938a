#!/usr/bin/env bash
# Assembles the GPU pack from what `./x build` left: load-tests/gpu/pack.sh TARGET FOLDER
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
target=${1:?the folder of the build, such as target}
folder=${2:?the folder of the pack}

die() { echo "pack.sh: $*" >&2; exit 1; }
for built in "$target/release/tessera-kernel-endpoint" "$target/kernel-shim/libcuda.so.1"; do
  [ -e "$built" ] || die "there is no $built: run ./x build"
done
mkdir -p "$folder/bin" "$folder/kernel-shim" "$folder/companion" "$folder/gpu_pack"
install -m 755 "$here/run.sh" "$folder/run.sh"
install -m 644 "$here/PACK.md" "$folder/README.md"
install -m 644 "$here"/gpu_pack/*.py "$folder/gpu_pack/"
install -m 755 "$target/release/tessera-kernel-endpoint" "$folder/bin/"
install -m 644 "$target/kernel-shim/libcuda.so.1" "$folder/kernel-shim/"
install -m 644 "$here/../../gpu-agent/companion/sitecustomize.py" "$folder/companion/"
# Part 9 runs a whole cluster.
for program in tessera tessera-controller tessera-agent tessera-shepherd tessera-launch; do
  install -m 755 "$target/release/$program" "$folder/bin/"
done
if command -v strip >/dev/null; then strip --strip-unneeded "$folder"/bin/*; fi
commit=$(git -C "$here" rev-parse HEAD 2>/dev/null || echo unknown)
[ "$commit" = unknown ] || git -C "$here" diff --quiet HEAD || commit="$commit, changed"
echo "$commit" >"$folder/COMMIT"
