"""Python packages of the guest."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from innkeeper.image.model import ImageError
from innkeeper.image.wheels import SITE_PACKAGES, Wheel, parse_wheels_lock, unpack_wheels

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def test_the_lock_is_pips_own_format() -> None:
    text = f"# about\ngrpcio==1.80.0 --hash=sha256:{'ab' * 32}\n"
    assert parse_wheels_lock(text, source="x") == (
        Wheel(name="grpcio", version="1.80.0", sha256="ab" * 32),
    )


@pytest.mark.parametrize("line", ["grpcio>=1.80", "grpcio==1.80.0", "grpcio==1 --hash=md5:ab"])
def test_a_wheel_without_version_or_hash_is_refused(line: str) -> None:
    with pytest.raises(ImageError, match=r"wheels\.lock:1: not a pinned wheel"):
        parse_wheels_lock(line, source="wheels.lock")


def test_code_and_licence_are_unpacked_and_nothing_else(tmp_path: Path) -> None:
    wheel = tmp_path / "wheel"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in (
            "pack/__init__.py",
            "pack/_fast.so",
            "pack/data.pem",
            "pack/__init__.pyi",
            "pack/py.typed",
            "pack/_fast.pyx",
            "pack/tests/test_x.py",
            "pack/latest.py",
            "pack-1.dist-info/METADATA",
            "pack-1.dist-info/RECORD",
            "pack-1.dist-info/licenses/LICENSE",
            "pack-1.data/scripts/pack",
        ):
            archive.writestr(name, name)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wheel.rename(tmp_path / f"{digest}.whl")
    tree = unpack_wheels([Wheel(name="pack", version="1", sha256=digest)], tmp_path)
    files = [path for path, node in tree.below(SITE_PACKAGES) if node.content]
    assert [path.removeprefix(f"{SITE_PACKAGES}/") for path in files] == [
        "pack-1.dist-info/METADATA",
        "pack-1.dist-info/licenses/LICENSE",
        "pack/__init__.py",
        "pack/_fast.so",
        "pack/data.pem",
        "pack/latest.py",
    ]


def test_the_guests_wheels_are_what_the_protocol_needs(root: Path) -> None:
    path = root / "guest-image/wheels.lock"
    names = {wheel.name for wheel in parse_wheels_lock(path.read_text(), source=str(path))}
    assert {"grpcio", "protobuf", "grpcio-health-checking", "grpcio-reflection"} <= names


def test_host_and_guest_speak_through_the_same_versions(root: Path) -> None:
    """Generated code refuses a protobuf older than itself: both sides get what it was made for."""
    path = root / "guest-image/wheels.lock"
    guest = {
        wheel.name: wheel.version for wheel in parse_wheels_lock(path.read_text(), source=str(path))
    }
    host = dict(
        line.split()[0].split("==", 1)
        for line in (root / "requirements.lock").read_text().splitlines()
        if "==" in line
    )
    assert guest == {name: host[name] for name in guest}
