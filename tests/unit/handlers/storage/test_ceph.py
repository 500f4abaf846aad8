"""CephFS: what the kernel is told without mount.ceph (fs/ceph/super.c, net/ceph/ceph_common.c)."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.core import sources
from agent.core.errors import Code, Reason
from agent.core.fileops import FsMount, MountOption
from agent.core.sources import CephSource
from agent.handlers.storage.ceph import CephStorage
from tests.fakes.served import ServedBench, served_bench, shown

pytestmark = [pytest.mark.unit, pytest.mark.storage]

# A key as `ceph auth print-key` shows one.
SECRET = "AQAwTe5mAAAAABAAZ5bmXbmVpl8WHQ3c5dVEzA=="
CLUSTER = CephSource(monitors=("mon1", "mon2:6790", "192.0.2.7"), path="/home", user="guest")


@pytest.fixture
async def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedBench]:
    async with served_bench(tmp_path, CephStorage(), monkeypatch) as made:
        made.names.hosts = {"mon1": ("192.0.2.1", "2001:db8::1"), "mon2": ("192.0.2.2",)}
        yield made


def monitors(call: FsMount) -> str:
    return call.source.partition(":/")[0]


async def test_a_mount(lab: ServedBench) -> None:
    call = await lab.call(
        CephSource(
            monitors=("mon1", "mon2:6790", "192.0.2.7"),
            path="/home",
            user="guest",
            password=SECRET,
            file_system="cold",
        ),
        "noatime",
        "rasize=0",
        timeout=20.9,
    )
    assert call.source == ("192.0.2.1:6789,[2001:db8::1]:6789,192.0.2.2:6790,192.0.2.7:6789:/home")
    assert (call.fs_type, call.options[:4]) == (
        "ceph",
        (
            MountOption(key="name", value="guest"),
            MountOption(key="secret", value=SECRET, secret=True),
            MountOption(key="mds_namespace", value="cold"),
            MountOption(key="rasize", value="0"),
        ),
    )
    assert [str(each) for each in call.options[4:]] == ["mount_timeout=20"]


@pytest.mark.parametrize(
    ("monitor", "told"),
    [
        ("192.0.2.7:6790", "192.0.2.7:6790"),
        ("2001:db8::5", "[2001:db8::5]:6789"),
        ("[2001:db8::5]", "[2001:db8::5]:6789"),
        ("[2001:db8::5]:6790", "[2001:db8::5]:6790"),
    ],
)
async def test_monitors_by_address(lab: ServedBench, monitor: str, told: str) -> None:
    assert monitors(await lab.call(CephSource(monitors=(monitor,)))) == told


async def test_the_second_protocol_has_another_port(lab: ServedBench) -> None:
    """https://docs.ceph.com/en/latest/rados/configuration/msgr2: 3300; ms_mode is the kernel's."""
    source = CephSource(monitors=("192.0.2.7",))
    assert monitors(await lab.call(source, "ms_mode=prefer-crc")) == "192.0.2.7:3300"
    assert monitors(await lab.call(source, "ms_mode=legacy")) == "192.0.2.7:6789"


@pytest.mark.parametrize("monitor", ["", "mon1:0", "mon1:70000", "mon1:x", "a,b", "mon1/x", "a b"])
async def test_monitors_that_are_none(lab: ServedBench, monitor: str) -> None:
    error = await lab.refusal(CephSource(monitors=(monitor,)))
    assert (error.reason, error.fields["field"]) == (Reason.BAD_FIELD, "source.ceph.monitors")


async def test_a_monitor_that_nobody_knows_is_left_out(lab: ServedBench) -> None:
    assert monitors(await lab.call(CephSource(monitors=("gone", "mon2")))) == "192.0.2.2:6789"
    error = await lab.refusal(CephSource(monitors=("gone", "lost")))
    assert (error.code, error.reason) == (Code.UNAVAILABLE, Reason.NAME_NOT_RESOLVED)
    assert error.fields == {"host": "gone"}


async def test_more_addresses_than_a_cluster_may_have(lab: ServedBench) -> None:
    lab.names.hosts["many"] = tuple(f"192.0.2.{number}" for number in range(1, 41))
    assert monitors(await lab.call(CephSource(monitors=("many",)))).count(",") == 30


@pytest.mark.parametrize(
    ("words", "field"),
    [("name=admin", "user"), ("mds_namespace=hot", "file_system"), ("fs=hot", "file_system")],
)
async def test_what_is_said_twice(lab: ServedBench, words: str, field: str) -> None:
    source = CephSource(monitors=("192.0.2.7",), user="guest", file_system="cold")
    error = await lab.refusal(source, words)
    assert error.fields["field"] == f"source.ceph.{field}"


async def test_the_users_own_patience_is_kept(lab: ServedBench) -> None:
    source = CephSource(monitors=("192.0.2.7",))
    assert await lab.options(source, "mount_timeout=5") == ["mount_timeout=5"]


async def test_a_path_is_absolute(lab: ServedBench) -> None:
    error = await lab.refusal(CephSource(monitors=("192.0.2.7",), path="home"))
    assert error.fields["field"] == "source.ceph.path"


@pytest.mark.parametrize("word", [f"secret={SECRET}", f"key={SECRET}", f"secretfile=/{SECRET}"])
async def test_secrets_are_no_options(lab: ServedBench, word: str) -> None:
    error = await lab.refusal(CLUSTER, word)
    assert (error.reason, error.fields["field"]) == (Reason.BAD_FIELD, "options")
    assert SECRET not in str(error)


async def test_the_secret_is_not_shown(lab: ServedBench) -> None:
    source = CephSource(monitors=("192.0.2.7",), path="/home", user="guest", password=SECRET)
    texts = (shown(await lab.call(source)), repr(source), json.dumps(sources.to_data(source)))
    assert [text for text in texts if SECRET in text] == []
    assert source == CephSource(monitors=("192.0.2.7",), path="/home", user="guest")
