"""Which image a device wants that no driver takes in the guest."""

from __future__ import annotations

import pytest

from innkeeper.shim import hardware
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.hardware import Setting
from innkeeper.shim.host_service import hint_at_flavour
from innkeeper.shim.plugged import Wanted
from innkeeper.v1 import host_pb2

pytestmark = [pytest.mark.unit, pytest.mark.devices]

KINDS = {
    "bochs-display": host_pb2.Hardware(gpu=host_pb2.Gpu()),
    "e1000e": host_pb2.Hardware(nic=host_pb2.Nic(model=host_pb2.NIC_MODEL_E1000E)),
    "igb": host_pb2.Hardware(nic=host_pb2.Nic(model=host_pb2.NIC_MODEL_IGB)),
    "virtio-net": host_pb2.Hardware(nic=host_pb2.Nic()),
}
NOTHING = "device x: 0000:01:00.0 is there, it has no driver, below it: nothing; no DRM card"


def hint(
    kind: str, flavour: str = "cloud", reason: str = "DEVICE_NOT_READY", text: str = NOTHING
) -> str:
    made = hardware.parse(KINDS[kind], "x", Setting(vm="web"))
    error = ShimError(Reason.GUEST_REFUSED, text, hint="old", fields={"guest_reason": reason})
    hint_at_flavour(error, (Wanted(id="x", hardware=made),), flavour)
    return error.hint


@pytest.mark.parametrize("kind", ["bochs-display", "e1000e", "igb"])
def test_kinds_of_the_generic_image_say_so(kind: str) -> None:
    """Debian's cloud kernel has neither DRM nor Intel's drivers for real cards."""
    assert hint(kind) == (
        f"{kind} wants an image of flavour generic, as in: innkeeper vm start NAME --image generic"
    )


def test_other_failures_keep_their_own_hint() -> None:
    assert hint("virtio-net") == "old"
    assert hint("igb", flavour="generic") == "old"
    assert hint("igb", reason="BAD_FIELD") == "old"
    assert hint("igb", text="it has a driver, and no interface") == "old"
