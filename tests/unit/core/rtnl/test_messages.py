"""The door to pyroute2: what comes in by it, and what bytes are read as."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
from pathlib import Path

import pytest

from agent.core.rtnl.messages import (
    Attributes,
    address,
    body,
    decoded,
    link_message,
    mac,
    nested,
    text,
)
from tests.fakes import netlink_messages as raw
from tests.fakes.netlink_wire import attribute

pytestmark = [pytest.mark.unit, pytest.mark.network]


def _python(root: Path, code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "module", ["links", "addresses", "routes", "rules", "neighbors", "monitor", "ethtool"]
)
def test_nothing_but_messages_is_loaded(root: Path, module: str) -> None:
    code = (
        f"import sys, asyncio; before = set(sys.modules); import agent.core.rtnl.{module};"
        "print(*sorted(set(sys.modules) - before))"
    )
    loaded = set(_python(root, code).split())
    assert "pyroute2.netlink.rtnl.rtmsg" in loaded
    unwanted = {
        *("multiprocessing", "pickle", "sqlite3", "http", "xml", "ctypes.util"),
        *("pyroute2.ndb", "pyroute2.iproute", "pyroute2.netlink.nlsocket", "pyroute2.netns"),
        *("pyroute2.netlink.generic", "pyroute2.process", "pyroute2.requests"),
    }
    assert loaded & unwanted == set()


def test_the_real_package_stays_where_it_is_loaded_already(root: Path) -> None:
    code = (
        "import sys, types; real = types.ModuleType('pyroute2'); import importlib.util as u;"
        "real.__path__ = list(u.find_spec('pyroute2').submodule_search_locations);"
        "sys.modules['pyroute2'] = real; import agent.core.rtnl.messages;"
        "print(sys.modules['pyroute2'] is real, 'multiprocessing' in sys.modules)"
    )
    assert _python(root, code) == "True True"


def test_an_address_is_told_by_its_length() -> None:
    assert address(bytes([192, 0, 2, 9])) == ipaddress.ip_address("192.0.2.9")
    assert address(bytes(15) + b"\1") == ipaddress.ip_address("::1")
    assert address(b"") is None
    assert address(None) is None
    assert address(b"12345") is None


def test_a_link_layer_address_has_any_length() -> None:
    assert mac(bytes([2, 0, 0, 0, 0, 0xFE])) == "02:00:00:00:00:fe"
    infiniband = bytes(range(20))
    assert mac(infiniband) == infiniband.hex(":")
    assert mac(bytes(6)) == ""
    assert mac(None) == ""


def test_a_name_is_bytes() -> None:
    assert text(b"eth0\0") == "eth0"
    assert text("ß".encode() + b"\0") == "ß"
    assert text(b"\xff\xfe0\0") == r"\xff\xfe0"
    assert text(b"") == ""


def test_attributes_that_nobody_knows_are_skipped() -> None:
    unknown = attribute(0x3FFF, b"\1\2\3"), attribute(200, b"")
    message = decoded(link_message, raw.link(1, 0, unknown[0], attribute(3, b"lo\0"), unknown[1]))
    found = Attributes(message)
    assert found.text("IFLA_IFNAME") == "lo"
    assert found.number("IFLA_MTU", 7) == 7
    assert "IFLA_MTU" not in found
    assert found.within("IFLA_LINKINFO").text("IFLA_INFO_KIND") == ""


def test_what_is_none_is_left_out() -> None:
    payload = body(link_message, {"index": 3}, ("IFLA_MTU", None), ("IFLA_IFNAME", "a"))
    assert raw.parts(payload, "=BxHiII") == ((0, 0, 3, 0, 0), [(3, b"a\0")])
    assert nested(("IFLA_MTU", None)) == {"attrs": []}
