"""The demonstration in a real VM."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from innkeeper.shim.client import list_vms
from tests.command_line import Innkeeper

pytestmark = [pytest.mark.vm, pytest.mark.devices]

STEPS = [
    "image",
    "disk made",
    "boot",
    "agent ready",
    "guest",
    "disk plugged",
    "mounted",
    "container ran",
    "unplugged",
    "powered off",
    "checked",
]


async def test_the_demonstration_goes_through_every_step(image: Path) -> None:
    """Its own checks are tested in tests/unit/cli/test_demo.py; here they must be reached."""
    before = {vm.name for vm in list_vms()}
    done = await Innkeeper(environment=os.environ)("demo", "--image", f"{image}/")
    assert done.code == 0, done
    *lines, last = done.lines
    assert last == "demo: ok"
    assert [re.split(r"\s+\d+\.\d\d s", line)[0] for line in lines] == STEPS
    plugged = lines[STEPS.index("disk plugged")]
    assert re.search(r"PCI path [0-9a-f./]+, 0000:\w\w:\w\w\.\w, /dev/vd\w, 64 MiB", plugged)
    assert {vm.name for vm in list_vms()} == before


async def test_a_boot_that_fails_names_its_step_and_leaves_nothing(image: Path) -> None:
    before = {vm.name for vm in list_vms()}
    done = await Innkeeper(environment=os.environ)("demo", "--image", "no-such-image/")
    assert done.code == 1
    assert "demo: ok" not in done.lines
    assert 'demo failed at "image"' in done.err
    assert {vm.name for vm in list_vms()} == before
