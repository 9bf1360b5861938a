"""Writes an SPDX document of all crates: cargo metadata | sbom.py VERSION SECONDS Cargo.lock"""

import datetime
import hashlib
import json
import sys
import tomllib

version, seconds, lock = sys.argv[1:]
metadata = json.load(sys.stdin)
with open(lock, "rb") as file:
    text = file.read()
checksums = {
    (package["name"], package["version"]): package.get("checksum")
    for package in tomllib.loads(text.decode())["package"]
}
members = set(metadata["workspace_members"])
created = datetime.datetime.fromtimestamp(int(seconds), datetime.timezone.utc)


def spdx_id(name, number):
    return "SPDXRef-" + "".join(c if c.isalnum() or c in ".-" else "-" for c in f"{name}-{number}")


packages = [
    {
        "SPDXID": "SPDXRef-tessera",
        "name": "tessera",
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "licenseConcluded": "Apache-2.0",
        "licenseDeclared": "Apache-2.0",
        "copyrightText": "NOASSERTION",
        "filesAnalyzed": False,
    }
]
relationships = [
    {
        "spdxElementId": "SPDXRef-DOCUMENT",
        "relationshipType": "DESCRIBES",
        "relatedSpdxElement": "SPDXRef-tessera",
    }
]
for package in sorted(metadata["packages"], key=lambda p: (p["name"], p["version"])):
    if package["id"] in members:
        continue
    name, number = package["name"], package["version"]
    licence = (package.get("license") or "NOASSERTION").replace("/", " OR ")
    entry = {
        "SPDXID": spdx_id(name, number),
        "name": name,
        "versionInfo": number,
        "downloadLocation": f"https://crates.io/api/v1/crates/{name}/{number}/download",
        "licenseConcluded": "NOASSERTION",
        "licenseDeclared": licence,
        "copyrightText": "NOASSERTION",
        "filesAnalyzed": False,
        "externalRefs": [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": f"pkg:cargo/{name}@{number}",
            }
        ],
    }
    if checksums.get((name, number)):
        entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksums[(name, number)]}]
    packages.append(entry)
    relationships.append(
        {
            "spdxElementId": "SPDXRef-tessera",
            "relationshipType": "DEPENDS_ON",
            "relatedSpdxElement": entry["SPDXID"],
        }
    )

json.dump(
    {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"tessera-{version}",
        "documentNamespace": f"https://tessera.invalid/spdx/{version}-{hashlib.sha256(text).hexdigest()[:16]}",
        "creationInfo": {
            "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: packaging/sbom.py"],
        },
        "packages": packages,
        "relationships": relationships,
    },
    sys.stdout,
    indent=1,
    sort_keys=True,
)
print()
