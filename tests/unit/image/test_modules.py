"""Kernel modules and what they need."""

from __future__ import annotations

import gzip
import lzma

import pytest

from innkeeper.image.modules import Module, close, decompress, module_name
from tests.fakes.elf import elf_file, module_file

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def test_a_module_tells_its_dependencies_in_the_kernels_spelling() -> None:
    module = Module.parse(
        module_file(license="GPL", depends="virtio-ring,virtio", softdep="pre: crc32c post: x")
    )
    assert module.depends == ("virtio_ring", "virtio")
    assert module.pre == ("crc32c",)


def test_an_empty_depends_is_none_and_several_soft_dependencies_add_up() -> None:
    module = Module.parse(module_file(depends="", softdep="pre: a b", softdep_="post: c pre: d"))
    assert module.depends == ()
    assert module.pre == ("a", "b", "d")


@pytest.mark.parametrize("content", [b"text", elf_file({".text": b""})])
def test_what_is_no_module_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match="not a"):
        Module.parse(content)


def test_names_come_from_files_of_every_compression() -> None:
    for suffix in ("", ".xz", ".zst", ".gz"):
        assert module_name(f"kernel/drivers/char/hw_random/virtio-rng.ko{suffix}") == "virtio_rng"
    assert module_name("modules.order") is None


def test_files_of_every_compression_are_read() -> None:
    assert decompress("a.ko", b"x") == b"x"
    assert decompress("a.ko.xz", lzma.compress(b"x")) == b"x"
    assert decompress("a.ko.gz", gzip.compress(b"x")) == b"x"


KNOWN = {
    "ext4": Module(depends=("jbd2", "mbcache", "crc16"), pre=("crc32c",)),
    "jbd2": Module(depends=("crc16",), pre=()),
    "mbcache": Module(depends=(), pre=()),
    "virtio_blk": Module(depends=("virtio",), pre=()),
    "broken": Module(depends=("nosuch",), pre=()),
    "one": Module(depends=("two",), pre=()),
    "two": Module(depends=("one",), pre=()),
}


def test_each_module_comes_after_what_it_needs() -> None:
    """Of ext4 of a Debian kernel: crc16 built in, its soft dependency crc32c an alias only."""
    closure = close(["ext4"], KNOWN.get, ["crc16"])
    assert closure.loaded == ("jbd2", "mbcache", "ext4")
    assert closure.built_in == ("crc16",)
    assert closure.absent == ()


def test_a_wanted_module_may_be_built_in_and_spelt_either_way() -> None:
    closure = close(["virtio-blk", "virtio-pci"], KNOWN.get, ["virtio_pci", "virtio"])
    assert closure.loaded == ("virtio_blk",)
    assert closure.built_in == ("virtio", "virtio_pci")


def test_what_is_nowhere_is_absent() -> None:
    assert close(["broken", "igb"], KNOWN.get, []).absent == ("nosuch", "igb")


def test_a_circle_ends() -> None:
    assert set(close(["one"], KNOWN.get, []).loaded) == {"one", "two"}
