"""The manifest beside an image."""

from __future__ import annotations

import json

import pytest

from innkeeper.image.lock import LockEntry, Role
from innkeeper.image.manifest import Part, debian_part, spdx, wheel_part
from innkeeper.image.wheels import Wheel

pytestmark = [pytest.mark.unit, pytest.mark.boot]

ENTRY = LockEntry(
    role=Role.IMAGE,
    name="libstdc++6",
    version="1:14.2.0-19",
    architecture="amd64",
    sha256="ab" * 32,
)


def document() -> dict[str, object]:
    parts = [
        debian_part(ENTRY, 2_500_000),
        wheel_part(Wheel(name="typing_extensions", version="4.1", sha256="cd" * 32), 10),
        Part(name="innkeeper", version="0", size=5),
    ]
    text = spdx(parts, name="innkeeper-cloud", inputs_hash="f" * 64)
    result: dict[str, object] = json.loads(text)
    return result


def test_it_has_what_spdx_2_3_requires_of_a_document() -> None:
    """Clause 6 of the SPDX 2.3 specification, and a package that it describes."""
    found = document()
    assert found["spdxVersion"] == "SPDX-2.3"
    assert found["dataLicense"] == "CC0-1.0"
    assert found["SPDXID"] == "SPDXRef-DOCUMENT"
    assert found["documentNamespace"] == f"urn:innkeeper:image:innkeeper-cloud:{'f' * 64}"
    assert found["creationInfo"] == {
        "created": "2025-08-09T00:00:00Z",
        "creators": ["Tool: innkeeper-image"],
    }
    relations = found["relationships"]
    assert isinstance(relations, list)
    assert relations[0] == {
        "spdxElementId": "SPDXRef-DOCUMENT",
        "relationshipType": "DESCRIBES",
        "relatedSpdxElement": "SPDXRef-Image",
    }
    assert [item["relationshipType"] for item in relations[1:]] == ["CONTAINS"] * 3


def test_each_part_has_version_hash_and_size() -> None:
    packages = document()["packages"]
    assert isinstance(packages, list)
    ids = [package["SPDXID"] for package in packages]
    assert len(set(ids)) == len(ids)
    debian, wheel, own = packages[1:]
    assert debian["versionInfo"] == "1:14.2.0-19"
    assert debian["checksums"] == [{"algorithm": "SHA256", "checksumValue": "ab" * 32}]
    assert debian["comment"] == "size in image: 2500000 bytes"
    assert wheel["name"] == "typing_extensions"
    assert "checksums" not in own


def test_package_urls_are_escaped() -> None:
    """purl: a version's colon and plus sign are percent-encoded, PyPI names are normalised."""
    debian, wheel, _ = (
        package.get("externalRefs", [{}])[0].get("referenceLocator")
        for package in list(document()["packages"])[1:]  # type: ignore[call-overload]
    )
    assert debian == "pkg:deb/debian/libstdc%2B%2B6@1%3A14.2.0-19?arch=amd64&distro=trixie"
    assert wheel == "pkg:pypi/typing-extensions@4.1"
