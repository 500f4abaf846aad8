"""VMs for tests: one image per session, one VM shared by those that don't break it."""

from __future__ import annotations

import inspect
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from innkeeper.shim import commands
from innkeeper.shim.client import VmSpec
from tests.vm.guest import Guest, booted

LONG = (
    *("privileged_in_guest", "transport", "shares", "network", "served_storages"),
    *("container_counts", "sandbox_setup", "streams", "cli", "device_classes", "storage_faults"),
    *("block_storages", "container_networks", "differential", "storm", "grants"),
)
"""Files that take longest, and so begin first: two run at a time, and neither shall be left
over when all else is done."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One event loop for the session: the shared VM's channel lives in it."""
    places = {f"test_{name}": place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONG)))
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            if inspect.iscoroutinefunction(getattr(item, "function", None)):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session", autouse=True)
def state_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VMs of the tests are out of sight of the user's own."""
    directory = tmp_path_factory.mktemp("vms", numbered=True)
    directory.chmod(0o700)
    os.environ["INNKEEPER_STATE_DIR"] = str(directory)
    return directory


@pytest.fixture(scope="session")
def image(root: Path) -> Path:
    """The image of flavour cloud, built when its inputs have changed."""
    commands.run(
        [str(root / "build/venv/bin/innkeeper"), "image", "build", "--flavour", "cloud"],
        deadline=1500,
    )
    return root / "build/images/cloud"


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def guest(image: Path) -> AsyncIterator[Guest]:
    """The shared VM, over virtio-serial, with a bridge for paths of three levels."""
    spec = VmSpec(name="shared", image=f"{image}/", transport="serial", bridge=True, cpus=2)
    async with booted(spec) as running:
        yield running


@pytest.fixture(scope="session")
def vhost_device_vsock() -> str:
    """The program that gives a VM real vsock without a host kernel module."""
    found = shutil.which("vhost-device-vsock")
    if found is None:
        pytest.skip("vhost-device-vsock is not installed (cargo was not there to build it)")
    return found
