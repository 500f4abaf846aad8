"""Device-mapper's ioctls, byte by byte."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent.linux import devicemapper as dm
from tests.fakes.devicemapper import MAJOR, READONLY, SECURE, FakeDeviceMapper
from tests.fakes.sysfs import FakeSysfs

pytestmark = [pytest.mark.unit, pytest.mark.storage]

KEY = "6b" * 64


@pytest.fixture
def mapper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeDeviceMapper:
    made = FakeDeviceMapper(FakeSysfs(tmp_path))
    monkeypatch.setattr("fcntl.ioctl", made.ioctl)
    return made


def control(mapper: FakeDeviceMapper) -> str:
    return str(mapper.sysfs.roots.dev / "mapper/control")


def load(mapper: FakeDeviceMapper, parameters: str, **more: bool) -> None:
    flags = {"read_only": False, "secret": False} | more
    dm.load_mapping(
        path=control(mapper),
        name="m",
        sectors=128,
        target="crypt",
        parameters=parameters,
        **flags,
    )


def test_a_device_from_its_making_to_its_end(mapper: FakeDeviceMapper) -> None:
    path = control(mapper)
    assert dm.create_mapping(path=path, name="m", uuid="u") == [MAJOR, 0]
    load(mapper, "a b c", read_only=True)
    made = mapper.mappings["m"]
    assert (made.uuid, made.target, made.sectors, made.parameters) == ("u", "crypt", 128, "a b c")
    assert made.flags == READONLY
    assert not dm.mapping_status(path=path, name="m").active
    dm.resume_mapping(path=path, name="m")
    made.opened = 2
    status = dm.mapping_status(path=path, name="m")
    assert status == (MAJOR, 0, 2, True, True, False)
    with pytest.raises(OSError, match="DM_DEV_REMOVE") as caught:
        dm.remove_mapping(path=path, name="m", deferred=False)
    assert (caught.value.errno, caught.value.filename) == (errno.EBUSY, "m")
    dm.remove_mapping(path=path, name="m", deferred=True)
    assert dm.mapping_status(path=path, name="m").leaving
    made.opened = 0
    dm.remove_mapping(path=path, name="m", deferred=False)
    with pytest.raises(OSError, match="DM_DEV_STATUS") as caught:
        dm.mapping_status(path=path, name="m")
    assert caught.value.errno == errno.ENXIO


def test_the_bytes_of_a_creation(mapper: FakeDeviceMapper) -> None:
    """By hand from <linux/dm-ioctl.h>: version 4.0.0, 312 bytes of data that start at 312."""
    dm.create_mapping(path=control(mapper), name="name", uuid="uuid")
    (buffer,) = mapper.buffers
    assert len(buffer) == 312
    assert buffer[:20] == bytes.fromhex("04000000 00000000 00000000 38010000 38010000")
    assert buffer[48:53] == b"name\0"
    assert buffer[176:181] == b"uuid\0"


def test_a_key_is_wiped_and_the_kernel_told_to(mapper: FakeDeviceMapper) -> None:
    """Python passes a buffer of up to 1024 bytes as a copy, which nobody would wipe."""
    dm.create_mapping(path=control(mapper), name="m", uuid="u")
    load(mapper, f"aes-xts-plain64 {KEY} 0 8:0 0", secret=True)
    made = mapper.mappings["m"]
    assert made.parameters.split()[1] == KEY
    assert made.flags == SECURE
    assert len(mapper.buffers[-1]) > 1024
    assert not any(mapper.buffers[-1])


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOMEM])
def test_a_key_is_wiped_and_not_told_when_the_kernel_refuses(
    mapper: FakeDeviceMapper, number: int
) -> None:
    dm.create_mapping(path=control(mapper), name="m", uuid="u")
    mapper.refuse[9] = number
    with pytest.raises(OSError, match="DM_TABLE_LOAD") as caught:
        load(mapper, f"aes-xts-plain64 {KEY} 0 8:0 0", secret=True)
    assert caught.value.errno == number
    error: BaseException | None = caught.value
    while error is not None:
        assert KEY not in f"{error!r} {error} {error.args}"
        error = error.__cause__
    assert not any(mapper.buffers[-1])


def test_a_table_is_shown_without_its_parameters() -> None:
    table = dm.MappingTable(target="crypt", sectors=1, parameters=KEY, secret=True)
    assert KEY not in repr(table)


def test_no_control_node(tmp_path: Path) -> None:
    path = str(tmp_path / "control")
    with pytest.raises(FileNotFoundError, match="open") as caught:
        dm.resume_mapping(path=path, name="m")
    assert caught.value.filename == path


@pytest.mark.parametrize("name", ["x" * 128, "ü" * 64, "a\0b"])
def test_names_that_the_kernel_would_cut(mapper: FakeDeviceMapper, name: str) -> None:
    with pytest.raises(OSError, match="too long") as caught:
        dm.create_mapping(path=control(mapper), name=name, uuid="")
    assert caught.value.errno == errno.ENAMETOOLONG
    assert mapper.commands == []


def test_all_devices_are_listed_however_many(mapper: FakeDeviceMapper) -> None:
    path = control(mapper)
    assert dm.mappings(path) == {}
    names = [f"innkeeper.verity.{number}" for number in range(800)]
    for name in names:
        dm.create_mapping(path=path, name=name, uuid=name)
    assert dm.mappings(path) == {name: (MAJOR, number) for number, name in enumerate(names)}


CALLS: dict[str, Callable[[str], object]] = {
    "DM_DEV_CREATE": lambda path: dm.create_mapping(path=path, name="m", uuid="u"),
    "DM_DEV_SUSPEND": lambda path: dm.resume_mapping(path=path, name="m"),
    "DM_DEV_STATUS": lambda path: dm.mapping_status(path=path, name="m"),
    "DM_DEV_REMOVE": lambda path: dm.remove_mapping(path=path, name="m", deferred=False),
    "DM_LIST_DEVICES": dm.mappings,
}


@pytest.mark.parametrize("name", CALLS)
def test_each_call_tells_its_name_and_leaves_no_descriptor(
    mapper: FakeDeviceMapper, name: str
) -> None:
    mapper.refuse = dict.fromkeys(range(20), errno.EPERM)
    with pytest.raises(PermissionError, match=name):
        CALLS[name](control(mapper))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=3000),
    st.booleans(),
    st.booleans(),
)
def test_any_parameters_arrive_whole(
    mapper: FakeDeviceMapper, text: str, secret: bool, read_only: bool
) -> None:
    path = control(mapper)
    dm.create_mapping(path=path, name="m", uuid="u")
    load(mapper, text, secret=secret, read_only=read_only)
    assert mapper.mappings["m"].parameters == text
    assert mapper.mappings["m"].flags == SECURE * secret | READONLY * read_only
    dm.remove_mapping(path=path, name="m", deferred=False)
