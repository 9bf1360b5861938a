"""Makes an image's archive the same bytes for the same contents: docker save IMAGE | image.py SECONDS >ARCHIVE

An engine writes the time of each build into layers and settings. All times become SECONDS, and files are sorted. The
result is an archive that `docker load` and `podman load` read.
"""

import hashlib
import io
import json
import sys
import tarfile
import time

seconds = int(sys.argv[1])
created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def add(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size, member.mtime, member.mode = len(data), seconds, 0o644
    archive.addfile(member, io.BytesIO(data))


def layer(data):
    """Returns a layer with sorted files and one time."""
    out = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(data)) as before, tarfile.open(
        fileobj=out, mode="w", format=tarfile.PAX_FORMAT
    ) as after:
        # A hard link follows the file that it names.
        for member in sorted(before.getmembers(), key=lambda m: (m.islnk(), m.name)):
            member.mtime, member.uname, member.gname = seconds, "", ""
            member.pax_headers = {
                key: value for key, value in member.pax_headers.items() if key.startswith("SCHILY.xattr.")
            }
            after.addfile(member, before.extractfile(member) if member.isreg() else None)
    return out.getvalue()


with tarfile.open(fileobj=io.BytesIO(sys.stdin.buffer.read())) as saved:

    def read(name):
        return saved.extractfile(name).read()

    image = json.loads(read("manifest.json"))[0]
    config = json.loads(read(image["Config"]))
    layers = [layer(read(name)) for name in image["Layers"]]

# The engine's own notes about the build.
for key in ("container", "container_config", "docker_version"):
    config.pop(key, None)
config["created"] = created
# Identifiers of the build's other images.
for key in ("Image", "Hostname"):
    config.get("config", {}).pop(key, None)
for step in config.get("history", []):
    step["created"] = created
    # A copied file's digest in it depends on its time.
    step["created_by"] = step.get("created_by", "").split(" file:")[0].split(" dir:")[0]
names = [hashlib.sha256(data).hexdigest() for data in layers]
config["rootfs"] = {"type": "layers", "diff_ids": [f"sha256:{name}" for name in names]}
config = json.dumps(config, sort_keys=True).encode()
config_name = f"{hashlib.sha256(config).hexdigest()}.json"
manifest = [
    {"Config": config_name, "RepoTags": image["RepoTags"], "Layers": [f"{name}.tar" for name in names]}
]
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|", format=tarfile.PAX_FORMAT) as archive:
    add(archive, "manifest.json", json.dumps(manifest, sort_keys=True).encode())
    add(archive, config_name, config)
    for name, data in dict(zip(names, layers)).items():
        add(archive, f"{name}.tar", data)
