"""The privileged tier once more, inside the guest: its kernel, its crun, its cgroup v2.

The machine that builds may have an old kernel, or no cgroup v2; the guest has
what the product runs on. pytest and the tests come on a hot-plugged disk, and
run in a container of the product itself that shares everything with the guest.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sysconfig
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from innkeeper.shim.client import VmSpec
from innkeeper.shim.guest_disk import make_disk
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import storages_pb2 as storages
from innkeeper.v1 import types_pb2 as types
from tests.fakes.plugs import disk_plug
from tests.privileged.counts import FEWER
from tests.vm.guest import EVERYTHING, PROBE, Guest, booted
from tests.vm.iproute import put_iproute

pytestmark = [pytest.mark.vm, pytest.mark.containers]

# Pure Python, so they run under the guest's Python as they are.
PACKAGES = (
    *("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pytest_asyncio"),
    *("pytest_timeout", "py", "pygments", "typing_extensions", "pyudev"),
)
REPORT = "report.xml"
PATIENCE = 2100.0
"""Seconds for the tier under emulation; 1,000 to 1,600 on two CPUs, as busy as
they are."""


def _copy_package(name: str, target: Path) -> None:
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    origin = Path(spec.origin)
    if spec.submodule_search_locations:
        ignore = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(origin.parent, target / name, ignore=ignore)
    else:
        shutil.copy(origin, target / origin.name)
    _copy_entry_points(name, origin, target)


def _copy_libudev(target: Path) -> None:
    """The witness of uevents, which the guest has no use for, and what finds it for ctypes."""
    target.mkdir()
    libraries = Path("/usr/lib", sysconfig.get_config_var("MULTIARCH"))
    for file in (libraries / "libudev.so.1", Path("/sbin/ldconfig")):
        shutil.copy(file, target)


def _copy_entry_points(name: str, origin: Path, target: Path) -> None:
    """pytest finds its plug-ins by their distributions' metadata."""
    base = origin.parent if origin.name != "__init__.py" else origin.parent.parent
    for found in base.glob(f"{name}-*.dist-info"):
        shutil.copytree(found, target / found.name)


def _fill(directory: Path, root: Path) -> None:
    site = directory / "site"
    site.mkdir(parents=True)
    for name in PACKAGES:
        _copy_package(name, site)
    _copy_libudev(directory / "udev")
    put_iproute(directory / "iproute")
    ignore = shutil.ignore_patterns("__pycache__")
    code = directory / "code"
    shutil.copytree(root / "tests", code / "tests", ignore=ignore)
    shutil.copy(root / "pyproject.toml", code)
    # The code under test is the image's, and is found from the tests' folder as in a checkout.
    for name in ("agent", "innkeeper"):
        (code / name).symlink_to(f"/usr/lib/innkeeper/{name}")


def _mounts() -> list[dict[str, object]]:
    """The guest's own programs and libraries over the container's small root.

    /bin stays the root's own, as the guest has no /bin/true and no /bin/umount;
    /etc too, so that it can be told of one more library.
    """
    pairs = {"/usr": "/usr", "/lib": "/usr/lib", "/lib64": "/usr/lib64"}
    own = [
        {"destination": where, "type": "bind", "source": source, "options": ["rbind"]}
        for where, source in pairs.items()
    ]
    tmp: dict[str, object] = {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs"}
    return [*PROBE["mounts"][:3], *own, tmp]


# The agent gives a container its own cgroup namespace unless it names another one.
LINUX = {
    **PROBE["linux"],
    "namespaces": [{"type": "mount"}, {"type": "cgroup", "path": "/proc/1/ns/cgroup"}],
}
SCRIPT = f"""
export {FEWER}={int("INNKEEPER_SOAK" not in os.environ)}
modprobe -a loop tun
cp /tests/udev/ldconfig /sbin
ldconfig -X /tests/udev
cd /tests/code
# Before busybox's ip, which knows less.
export PATH=/tests/iproute:$PATH
export PYTHONPATH=/tests/code:/usr/lib/innkeeper:/tests/site:/usr/lib/innkeeper/site-packages
export PYTHONDONTWRITEBYTECODE=1
python3 -B -m pytest tests/privileged -m privileged -v -p no:cacheprovider \
    -o addopts='--strict-markers --import-mode=importlib' -rs --timeout=120 \
    -o tmp_path_retention_policy=failed --durations=25 \
    --junitxml=/tests/{REPORT} 2>&1
"""


# The tier looks for what is behind PCI functions: a disk and an RNG are there anyway.
_NIC = host.PlugRequest(
    functions=[host.PlugFunction(id="nic", hardware=host.Hardware(nic=host.Nic()))]
)


@pytest.mark.timeout(2400)
async def test_the_privileged_tier_passes_in_the_guest(
    image: Path, root: Path, tmp_path: Path
) -> None:
    _fill(tmp_path / "tree", root)
    disk = tmp_path / "tests.img"
    make_disk(tmp_path / "tree", disk, free=16 << 20)
    spec = VmSpec(name="privileged", image=f"{image}/", transport="serial", cpus=2, memory=1 << 30)
    async with booted(spec) as guest:
        await guest.host.Plug(_NIC)
        finished = await _run_tier(guest, disk)
    report = _read_report(disk, tmp_path, finished)
    suite = report.getroot().find("testsuite")
    assert suite is not None
    failed = [
        f"{case.get('classname')}::{case.get('name')}: {problem.get('message')}"
        for case in suite.iter("testcase")
        for problem in (*case.findall("failure"), *case.findall("error"))
    ]
    assert failed == [], finished
    assert {str(skip.get("message")) for skip in suite.iter("skipped")} == set()
    assert int(suite.get("tests", 0)) >= 80


async def _run_tier(guest: Guest, disk: Path) -> str:
    await guest.host.Plug(disk_plug("tests", disk))
    storage = storages.Storage(
        id="tests", block=storages.BlockSource(device_id="tests", fs_type="ext4")
    )
    await guest.storages.Attach(storages.AttachStorageRequest(storage=storage))
    name = await guest.start(
        SCRIPT,
        mounts=_mounts(),
        linux=LINUX,
        process={"capabilities": EVERYTHING, "noNewPrivileges": False},
        storages=(containers.StorageMount(storage_id="tests", destination="/tests"),),
    )
    finished = await guest.follow(types.ProcessRef(container_id=name), limit=PATIENCE)
    await guest.remove(name)
    await guest.storages.Detach(storages.DetachStorageRequest(id="tests"))
    await guest.host.Unplug(host.UnplugRequest(id="tests"))
    return finished.text + finished.stderr.decode()


def _read_report(
    disk: Path, directory: Path, said: str
) -> ElementTree.ElementTree[ElementTree.Element]:
    from innkeeper.shim import commands

    target = directory / REPORT
    debugfs = next(p for p in ("/usr/sbin/debugfs", "/sbin/debugfs") if os.path.exists(p))
    commands.run([debugfs, "-R", f"dump /{REPORT} {target}", str(disk)], deadline=60)
    assert target.exists(), f"no report was written; pytest said:\n{said}"
    return ElementTree.parse(target)
