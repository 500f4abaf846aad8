"""KVM is taken on evidence only."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from innkeeper.shim import accel
from innkeeper.shim.accel import Accelerator
from innkeeper.shim.errors import Reason, ShimError

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def host(root: Path, *, module: str = "", node: bool = False) -> dict[str, Path]:
    sys, dev = root / "sys", root / "dev"
    (sys / "module" / module).mkdir(parents=True)
    dev.mkdir()
    if node:
        (dev / "kvm").touch()
    return {"sys": sys, "dev": dev}


@pytest.mark.parametrize("module", ["kvm_intel", "kvm_amd"])
def test_module_and_node_together_are_evidence(tmp_path: Path, module: str) -> None:
    roots = host(tmp_path, module=module, node=True)
    assert accel.choose("auto", **roots) is Accelerator.KVM


def test_a_node_alone_is_not(tmp_path: Path) -> None:
    """Some machines have the node, and an ordinary kernel hangs under it."""
    roots = host(tmp_path, node=True)
    assert accel.choose("auto", **roots) is Accelerator.TCG
    assert accel.doubt(**roots) == "neither kvm_intel nor kvm_amd is loaded"


def test_the_common_kvm_module_is_not(tmp_path: Path) -> None:
    assert accel.choose("auto", **host(tmp_path, module="kvm", node=True)) is Accelerator.TCG


def test_a_module_without_the_node_is_not(tmp_path: Path) -> None:
    roots = host(tmp_path, module="kvm_intel")
    assert accel.choose("auto", **roots) is Accelerator.TCG
    assert "kvm is not there" in accel.doubt(**roots)


def test_a_node_that_may_not_be_opened_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roots = host(tmp_path, module="kvm_intel", node=True)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert accel.choose("auto", **roots) is Accelerator.TCG


def test_the_user_overrides_evidence(tmp_path: Path) -> None:
    roots = host(tmp_path)
    assert accel.choose("kvm", **roots) is Accelerator.KVM
    assert accel.choose("tcg", **roots) is Accelerator.TCG


def test_an_unknown_accelerator_lists_the_known_ones() -> None:
    with pytest.raises(ShimError, match="one of auto, kvm, tcg") as caught:
        accel.choose("xen")
    assert caught.value.reason is Reason.BAD_FIELD
