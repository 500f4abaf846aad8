"""What the host uses, from the texts of proc."""

from __future__ import annotations

from pathlib import Path

import pytest

from innkeeper.shim import host_use

pytestmark = [pytest.mark.unit, pytest.mark.devices]

# The fields are those of proc(5); the last one is of a btrfs.
MOUNTS = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 259:2 / / rw,relatime shared:1 - ext4 /dev/nvme0n1p2 rw
28 27 259:1 / /boot/my\\040efi rw master:2 - vfat /dev/nvme0n1p1 rw
29 27 0:44 /@home /home rw - btrfs /dev/sdb rw,space_cache
30 27 259:2 /srv /srv rw - ext4 /dev/nvme0n1p2 rw
"""
# A default route, one that is not, and the gateway of another interface.
ROUTE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth1\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0
eth2\t00000000\t010200C0\t0003\t0\t0\t0\t00000080\t0\t0\t0
"""
ZEROS = "0" * 32
# The kernel's own `unreachable default` on lo, and a real one.
ROUTE6 = f"""\
{ZEROS} 00 {ZEROS} 00 fd000000000000000000000000000001 00000400 00000003 00000000 00000003 wlan0
{ZEROS} 00 {ZEROS} 00 {ZEROS} ffffffff 00000001 00000000 00200200       lo
fe80{"0" * 28} 40 {ZEROS} 00 {ZEROS} 00000100 00000002 00000000 00000001     eth3
"""
SWAPS = """\
Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority
/dev/dm-1                               partition\t8388604\t\t0\t\t-2
/swap/file                              file\t\t1024\t\t0\t\t-3
"""


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    files = {
        "self/mountinfo": MOUNTS,
        "net/route": ROUTE,
        "net/ipv6_route": ROUTE6,
        "swaps": SWAPS,
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def test_mounts_by_number_and_by_source(proc: Path) -> None:
    mounts = host_use.read(proc).mounts
    assert mounts["259:2"] == "/"
    assert mounts["259:1"] == "/boot/my efi"
    assert mounts["/dev/sdb"] == "/home"
    assert "proc" not in mounts


def test_what_process_1_sees_counts_too(proc: Path) -> None:
    """A shell in a mount namespace of its own does not see the host's root."""
    (proc / "1").mkdir()
    (proc / "1/mountinfo").write_text("1 0 8:1 / / rw - ext4 /dev/sda1 rw\n")
    assert host_use.read(proc).mounts["8:1"] == "/"


def test_swap(proc: Path) -> None:
    assert host_use.read(proc).swaps == {"/dev/dm-1", "/swap/file"}


def test_default_routes(proc: Path) -> None:
    assert host_use.read(proc).routes == {"eth0", "wlan0"}


def test_who_has_a_node_open(proc: Path) -> None:
    descriptors = proc / "812/fd"
    descriptors.mkdir(parents=True)
    (proc / "812/comm").write_text("qemu-system-x86\n")
    for number, target in enumerate(["/dev/vfio/14", "socket:[1]", "/var/log/x"]):
        (descriptors / str(number)).symlink_to(target)
    assert host_use.read(proc).openers == {"/dev/vfio/14": "process 812 (qemu-system-x86)"}


def test_a_proc_that_says_nothing(tmp_path: Path) -> None:
    assert host_use.read(tmp_path) == host_use.HostUse()
