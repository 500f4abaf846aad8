"""The other flavour, and every way to add to an image: built, checked, booted, looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from innkeeper.image.builder import build
from innkeeper.image.check import check_image
from innkeeper.image.model import BuildOptions, Flavour, Image
from innkeeper.image.progress import Silent
from innkeeper.shim import commands
from innkeeper.shim.client import VmSpec
from tests.vm.guest import booted

pytestmark = [pytest.mark.vm, pytest.mark.boot]


@pytest.fixture(scope="module")
def generic(tmp_path_factory: pytest.TempPathFactory) -> Image:
    """A vendor's image: one more package, a module, firmware, files of his own."""
    place = tmp_path_factory.mktemp("generic")
    (place / "vendor.bin").write_bytes(b"firmware of a vendor")
    (place / "files/etc").mkdir(parents=True)
    (place / "files/etc/vendor.conf").write_text("a file of a vendor\n")
    options = BuildOptions(
        flavour=Flavour.GENERIC,
        out=place / "images",
        packages=("pciutils",),
        modules=("dummy",),
        firmware=(place / "vendor.bin",),
        overlays=(place / "files",),
    )
    return build(options, Silent())


@pytest.mark.timeout(900)
async def test_the_generic_flavour_boots_with_all_that_was_added(generic: Image) -> None:
    check_image(generic)
    spec = VmSpec(name="generic", image=f"{generic.directory}/", transport="serial")
    async with booted(spec) as guest:
        assert (await guest.run("exit 42")).code == 42
        text = await guest.probe(
            "uname -r; cat /guest/etc/vendor.conf /guest/usr/lib/firmware/vendor.bin; echo;"
            " ls /guest/usr/bin/lspci;"
            " for m in dummy bochs 9p e1000e igb; do"
            "   find /guest/usr/lib/modules -name $m.ko | grep -c . | sed s/^/$m:/; done"
        )
    kernel, conf, firmware, lspci, *modules = text.splitlines()
    assert kernel == generic.kernel_version
    assert "cloud" not in kernel
    assert (conf, firmware) == ("a file of a vendor", "firmware of a vendor")
    assert lspci.endswith("lspci")
    assert modules == ["dummy:1", "bochs:1", "9p:1", "e1000e:1", "igb:1"]


@pytest.mark.timeout(900)
async def test_a_kernel_package_of_ones_own_is_booted(image: Path, tmp_path: Path) -> None:
    """A vendor's kernel with its modules; Debian's own, for want of another."""
    options = BuildOptions(kernel=_kernel_package(image), out=tmp_path)
    own = build(options, Silent())
    async with booted(VmSpec(name="own", image=f"{own.directory}/", transport="serial")) as guest:
        assert (await guest.probe("uname -r")).strip() == own.kernel_version


def _kernel_package(image: Path) -> Path:
    for package in (image.parent.parent / "cache/image/debs").glob("*.deb"):
        name = commands.run(["dpkg-deb", "-f", str(package), "Package"], deadline=30).text.strip()
        if name == f"linux-image-{Image.load(image).kernel_version}":
            return package
    raise AssertionError("the image's own kernel package is not in the cache of its build")


def test_a_kernel_without_modules_is_taken_as_it_is(image: Path, tmp_path: Path) -> None:
    """Its drivers are built in: modules of another build would not load."""
    own = build(BuildOptions(kernel=image / "vmlinuz", out=tmp_path), Silent())
    assert (own.directory / "vmlinuz").read_bytes() == (image / "vmlinuz").read_bytes()
    assert own.kernel_version == Image.load(image).kernel_version
    assert "kernel modules" not in json.loads((own.directory / "sizes.json").read_text())
