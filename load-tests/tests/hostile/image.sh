# Puts an image of this machine's programs into the own store, as users do on a node. The account has no subordinate ids.
set -e
root=$HOME/root
for folder in bin tmp etc dev proc sys run home; do mkdir -p "$root/$folder"; done
echo "of the image" > "$root/mark"
for program in sh cat id touch; do
    file=$(readlink -f "$(command -v $program)")
    cp "$file" "$root/bin/$program"
    for library in $(ldd "$file" | grep -o '/[^ ]*'); do
        mkdir -p "$root$(dirname "$library")"
        cp "$library" "$root$library"
    done
done
tar --owner=0 --group=0 -C "$root" -cf "$HOME/root.tar" .
mkdir -p -m 700 "$HOME/run"
export XDG_RUNTIME_DIR="$HOME/run" _CONTAINERS_USERNS_CONFIGURED=done
export _CONTAINERS_ROOTLESS_UID="$(id -u)" _CONTAINERS_ROOTLESS_GID="$(id -g)"
exec unshare --user --map-root-user --mount podman --storage-driver=vfs --cgroup-manager=cgroupfs \
    --events-backend=none import "$HOME/root.tar" localhost/house:1
