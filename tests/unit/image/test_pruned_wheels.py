"""What is pruned from wheels is nothing that the agent imports."""

from __future__ import annotations

import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from innkeeper.image.model import Flavour
from innkeeper.image.recipe import Recipe
from innkeeper.image.wheels import SITE_PACKAGES

pytestmark = [pytest.mark.unit, pytest.mark.network]

_SCRIPT = """
import importlib, pkgutil, sys
import agent.core.rtnl as package
for found in pkgutil.iter_modules(package.__path__):
    importlib.import_module(f"{package.__name__}.{found.name}")
for module in list(sys.modules.values()):
    if module.__name__.startswith("pyroute2") and getattr(module, "__file__", None):
        print(module.__name__.replace(".", "/"), hasattr(module, "__path__"))
"""


def test_messages_of_netlink_are_whole(root: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", _SCRIPT], cwd=root, capture_output=True, text=True, check=True
    ).stdout
    lines = [line.split() for line in said.splitlines()]
    files = {
        f"{SITE_PACKAGES}/{name}/__init__.py" if package == "True" else f"{SITE_PACKAGES}/{name}.py"
        for name, package in lines
    }
    assert f"{SITE_PACKAGES}/pyroute2/netlink/rtnl/rtmsg.py" in files
    patterns = Recipe.read(root / "guest-image", Flavour.CLOUD).pruned
    gone = {file for file in files for pattern in patterns if fnmatchcase(file, pattern)}
    assert gone == set()
