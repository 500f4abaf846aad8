"""Taps as sysfs shows them: `tun_flags` with the bits of include/uapi/linux/if_tun.h."""

from __future__ import annotations

from pathlib import Path

import pytest

from innkeeper.shim import taps
from innkeeper.shim.errors import Reason, ShimError

pytestmark = [pytest.mark.unit, pytest.mark.network]

# IFF_TAP 2, IFF_TUN 1, IFF_MULTI_QUEUE 0x100; 0x1800 is IFF_PERSIST and IFF_NO_PI.
ONE, MANY, TUN = "0x1802", "0x1902", "0x1801"


@pytest.fixture
def sys(tmp_path: Path) -> Path:
    for name, flags in {"tap0": ONE, "tap1": MANY, "tun0": TUN, "eth0": ""}.items():
        directory = tmp_path / "class/net" / name
        directory.mkdir(parents=True)
        if flags:
            (directory / "tun_flags").write_text(f"{flags}\n")
    return tmp_path


@pytest.mark.parametrize(("name", "queue_pairs"), [("tap0", 1), ("tap1", 2), ("tap1", 64)])
def test_a_tap_that_fits_is_taken(sys: Path, name: str, queue_pairs: int) -> None:
    assert taps.check(name, queue_pairs, sys) == name


@pytest.mark.parametrize(
    ("name", "queue_pairs", "told"),
    [
        ("tap9", 1, "no such interface"),
        ("eth0", 1, "is no tap"),
        ("tun0", 1, "is no tap"),
        ("tap0", 2, "was made without multi_queue"),
        ("tap1", 1, "was made with multi_queue"),
    ],
)
def test_what_the_host_has_not_is_told_with_the_way_to_it(
    sys: Path, name: str, queue_pairs: int, told: str
) -> None:
    with pytest.raises(ShimError, match=told) as caught:
        taps.check(name, queue_pairs, sys)
    assert caught.value.reason is Reason.HOST_LACKS
    assert caught.value.code.name == "FAILED_PRECONDITION"
    assert "ip tuntap add" in caught.value.hint
    assert ("multi_queue" in caught.value.hint.partition("ip tuntap")[2]) == (queue_pairs > 1)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a,b", "x" * 16, "a b"])
def test_what_is_no_name_is_a_bad_field(sys: Path, name: str) -> None:
    with pytest.raises(ShimError) as caught:
        taps.check(name, 1, sys)
    assert caught.value.fields["field"] == "tap"
