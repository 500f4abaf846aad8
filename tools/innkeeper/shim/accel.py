"""Which accelerator QEMU gets: KVM only on evidence.

A /dev/kvm node does not prove that KVM works: inside other VMs it may be there
while an ordinary kernel hangs under it. The module of the CPU's own
virtualization must be there too, and the node must be ours to open.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

from innkeeper.shim.errors import Reason, ShimError


class Accelerator(StrEnum):
    """How QEMU runs the guest's code."""

    KVM = "kvm"
    TCG = "tcg"

    @property
    def boot_limit(self) -> float:
        """Seconds that a boot may take to the agent's first answer."""
        return 30 if self is Accelerator.KVM else 120


_MODULES = ("kvm_intel", "kvm_amd")


def choose(wanted: str, *, sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> Accelerator:
    """`wanted` is "auto", "kvm" or "tcg"; the latter two are taken as they are."""
    if wanted == "auto":
        return Accelerator.TCG if doubt(sys=sys, dev=dev) else Accelerator.KVM
    try:
        return Accelerator(wanted)
    except ValueError:
        raise ShimError(
            Reason.BAD_FIELD,
            f"accelerator {wanted!r}: unknown",
            hint="one of auto, kvm, tcg",
            fields={"field": "accel"},
        ) from None


def doubt(*, sys: Path = Path("/sys"), dev: Path = Path("/dev")) -> str:
    """Why KVM is not taken; empty when all evidence is there."""
    if not any((sys / "module" / name).is_dir() for name in _MODULES):
        return f"neither {' nor '.join(_MODULES)} is loaded"
    node = dev / "kvm"
    if not node.exists():
        return f"{node} is not there"
    if not os.access(node, os.R_OK | os.W_OK):
        return f"{node} may not be opened by this user"
    return ""
