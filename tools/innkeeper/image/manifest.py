"""What is in an image, as SPDX 2.3 in JSON: packages, versions, licences unknown, sizes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from innkeeper.image.model import EPOCH

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from innkeeper.image.lock import LockEntry
    from innkeeper.image.wheels import Wheel

_NONE = "NOASSERTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One component of an image; `size` is bytes of file content in it."""

    name: str
    version: str
    size: int
    purl: str = ""
    sha256: str = ""
    """Of what it was made of: the .deb or the wheel."""


def debian_part(entry: LockEntry, size: int) -> Part:
    version = quote(entry.version, safe="")
    purl = f"pkg:deb/debian/{quote(entry.name)}@{version}?arch={entry.architecture}&distro=trixie"
    return Part(name=entry.name, version=entry.version, size=size, purl=purl, sha256=entry.sha256)


def wheel_part(wheel: Wheel, size: int) -> Part:
    purl = f"pkg:pypi/{wheel.name.lower().replace('_', '-')}@{wheel.version}"
    return Part(name=wheel.name, version=wheel.version, size=size, purl=purl, sha256=wheel.sha256)


def spdx(parts: Sequence[Part], *, name: str, inputs_hash: str) -> str:
    """The document; times in it are the image's own, so it is the same for the same inputs."""
    ids = [f"SPDXRef-Package-{index}" for index in range(len(parts))]
    document = {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": name,
        "documentNamespace": f"urn:innkeeper:image:{name}:{inputs_hash}",
        "creationInfo": {
            "created": datetime.fromtimestamp(EPOCH, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: innkeeper-image"],
        },
        "packages": [
            {"SPDXID": "SPDXRef-Image", "name": name, "versionInfo": inputs_hash[:12]} | _UNKNOWN,
            *(_package(part, ref) for part, ref in zip(parts, ids, strict=True)),
        ],
        "relationships": [
            _relation("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-Image"),
            *_contains(ids),
        ],
    }
    return json.dumps(document, indent=1) + "\n"


_UNKNOWN: dict[str, Any] = {
    "downloadLocation": _NONE,
    "filesAnalyzed": False,
    "licenseConcluded": _NONE,
    "licenseDeclared": _NONE,
    "copyrightText": _NONE,
}


def _package(part: Part, ref: str) -> dict[str, Any]:
    package = {"SPDXID": ref, "name": part.name, "versionInfo": part.version} | _UNKNOWN
    package["comment"] = f"size in image: {part.size} bytes"
    if part.sha256:
        package["checksums"] = [{"algorithm": "SHA256", "checksumValue": part.sha256}]
    if part.purl:
        package["externalRefs"] = [
            {
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator": part.purl,
            }
        ]
    return package


def _contains(ids: Iterable[str]) -> list[dict[str, str]]:
    return [_relation("SPDXRef-Image", "CONTAINS", ref) for ref in ids]


def _relation(subject: str, kind: str, other: str) -> dict[str, str]:
    return {"spdxElementId": subject, "relationshipType": kind, "relatedSpdxElement": other}
