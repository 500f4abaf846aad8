"""linux.devices and its rules: what the host listed, and what the guest makes of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent.core.model import DeviceGrant, DeviceNode, NodeType
from agent.core.roots import Roots
from agent.handlers.runtime.grants import Granted, select
from agent.handlers.runtime.spec.devices import (
    DevicePlan,
    Numbers,
    all_rules,
    guest_path,
    plan_devices,
    put_devices,
)
from tests.fakes.managers import node

pytestmark = [pytest.mark.unit, pytest.mark.containers]

DENY_ALL = {"allow": False, "access": "rwm"}
VDA, VDB = node("/dev/vda", 254, 0), node("/dev/vdb", 254, 16)
RULE_NAMES = ("allow", "type", "major", "minor", "access")


def entry(path: str, kind: str, major: int, minor: int, **more: Any) -> dict[str, Any]:
    return {"path": path, "type": kind, "major": major, "minor": minor, **more}


def allow(kind: str, major: int | None, minor: int | None, access: str) -> dict[str, Any]:
    return {"allow": True, "type": kind, "major": major, "minor": minor, "access": access}


def grant(device: str, *nodes: DeviceNode, path: str = "", permissions: str = "") -> Granted:
    words = DeviceGrant(device_id=device, container_path=path or None, permissions=permissions)
    return select(words, nodes)


def planned(
    entries: list[dict[str, Any]],
    rules: list[dict[str, Any]],
    *granted: Granted,
    guest: Mapping[Numbers, str] | None = None,
    user: dict[str, Any] | None = None,
) -> tuple[dict[str, Any], DevicePlan]:
    spec = {
        "process": {"args": ["sh"], "user": user or {}},
        "linux": {"devices": entries, "resources": {"devices": rules, "memory": {"limit": 1}}},
    }
    plan = plan_devices(spec, granted, (guest or {}).get)
    put_devices(spec, plan)
    return spec, plan


def rules_of(spec: dict[str, Any]) -> list[tuple[Any, ...]]:
    listed = spec["linux"]["resources"]["devices"]
    return [tuple(rule.get(name) for name in RULE_NAMES) for rule in listed]


def nodes_of(spec: dict[str, Any]) -> list[tuple[Any, ...]]:
    names = ("path", "type", "major", "minor")
    return [tuple(each[name] for name in names) for each in spec["linux"]["devices"]]


def of_type(spec: dict[str, Any], kind: str) -> list[tuple[Any, ...]]:
    """Rules of that type with numbers, without the default devices."""
    default = {1, 5, 136}
    rules = rules_of(spec)
    return [r for r in rules if r[1] == kind and r[2] is not None and r[2] not in default]


def test_without_rules_all_but_the_default_devices_is_refused() -> None:
    spec, _ = planned([], [])
    found = rules_of(spec)
    assert found[0] == (False, None, None, None, "rwm")
    assert (True, "c", 1, 3, "rwm") in found
    assert (True, "c", 136, None, "rwm") in found
    assert spec["linux"]["resources"]["memory"] == {"limit": 1}


def test_own_rules_do_not_take_the_default_devices_away() -> None:
    """[deny all, allow b 254:0] only, and then /dev/null could not be opened."""
    spec, _ = planned([], [DENY_ALL, allow("b", 254, 0, "rwm")])
    found = rules_of(spec)
    assert found[:2] == [(False, None, None, None, "rwm"), (True, "b", 254, 0, "rwm")]
    for minor in (3, 5, 7, 8, 9):
        assert (True, "c", 1, minor, "rwm") in found


def test_numbers_that_swap_do_not_run_into_each_other() -> None:
    """/dev/a is 8:0 on the host and 254:0 here; /dev/b is 254:0 there and 254:16 here.
    Rewritten one after the other, both rules ended at 254:16."""
    spec, _ = planned(
        [entry("/dev/a", "b", 8, 0), entry("/dev/b", "b", 254, 0)],
        [DENY_ALL, allow("b", 8, 0, "r"), allow("b", 254, 0, "rw")],
        grant("1", VDA, path="/dev/a"),
        grant("2", VDB, path="/dev/b"),
    )
    assert nodes_of(spec) == [("/dev/a", "b", 254, 0), ("/dev/b", "b", 254, 16)]
    assert of_type(spec, "b") == [(True, "b", 254, 0, "r"), (True, "b", 254, 16, "rw")]


def test_block_and_char_of_the_same_numbers_are_two_devices() -> None:
    """Each rule follows its own type; one of type `a` is left alone."""
    tun = node("/dev/net/tun", 10, 200, NodeType.CHAR)
    for_all = {"allow": True, "type": "a", "major": 8, "minor": 0, "access": "m"}
    spec, _ = planned(
        [entry("/dev/blk", "b", 8, 0), entry("/dev/chr", "c", 8, 0)],
        [DENY_ALL, allow("b", 8, 0, "r"), allow("c", 8, 0, "w"), for_all],
        grant("1", VDA, path="/dev/blk"),
        grant("2", tun, path="/dev/chr"),
    )
    assert of_type(spec, "b") == [(True, "b", 254, 0, "r")]
    assert of_type(spec, "c") == [(True, "c", 10, 200, "w")]
    assert (True, "a", 8, 0, "m") in rules_of(spec)


@pytest.mark.parametrize(("major", "minor"), [(8, None), (8, -1), (None, None), (-1, -1)])
def test_rules_that_leave_a_number_open_are_left_alone(
    major: int | None, minor: int | None
) -> None:
    wide = allow("b", major, minor, "r")
    spec, _ = planned(
        [entry("/dev/a", "b", 8, 0)], [DENY_ALL, wide], grant("1", VDA, path="/dev/a")
    )
    assert (True, "b", major, minor, "r") in rules_of(spec)
    assert rules_of(spec)[-1] == (True, "b", 254, 0, "rwm")


def test_entries_without_a_counterpart_are_left_out_with_their_rules() -> None:
    """The host's VFIO group, for a device that the guest's own driver has."""
    spec, plan = planned(
        [entry("/dev/vfio/vfio", "c", 10, 196), entry("/dev/vfio/45", "c", 241, 0)],
        [DENY_ALL, allow("c", 10, 196, "rwm"), allow("c", 241, 0, "rwm")],
    )
    assert nodes_of(spec) == []
    assert of_type(spec, "c") == []
    assert plan.dropped == ("/dev/vfio/vfio (c 10:196)", "/dev/vfio/45 (c 241:0)")


FUSE = {Numbers("c", 10, 229): "/dev/fuse"}


def test_entries_that_mean_the_same_in_the_guest_stay_as_they_are() -> None:
    """The kernel's fixed numbers (Documentation/admin-guide/devices.txt), by name and number;
    numbers of the default devices by any name (those of /dev/pts are not in sysfs)."""
    fuse = entry("/dev/./fuse", "c", 10, 229, fileMode=0o666)
    pipe = {"path": "/dev/pipe", "type": "p"}
    defaults = [entry("/dev/nothing", "c", 1, 3), entry("/dev/mine", "u", 136, 7)]
    spec, plan = planned([fuse, pipe, *defaults], [DENY_ALL, allow("c", 10, 229, "rw")], guest=FUSE)
    assert spec["linux"]["devices"] == [fuse, pipe, *defaults]
    assert of_type(spec, "c") == [(True, "c", 10, 229, "rw")]
    assert (plan.dropped, plan.claims) == ((), ())


def test_numbers_alone_do_not_make_a_device_the_guests() -> None:
    """Both kernels give numbers out as devices come: the host's tap (c 241:0) is some other
    device here, its disk b 254:0 the root disk, and a block device's name says as little."""
    vda = Numbers("b", 254, 0)
    spec, plan = planned(
        [
            entry("/dev/tap7", "c", 241, 0),
            entry("/dev/vda", "b", *vda[1:]),
            entry("/null", "b", 1, 3),
        ],
        [DENY_ALL, allow("c", 241, 0, "rw"), allow(*vda, "rwm"), allow("b", 1, 3, "r")],
        guest={Numbers("c", 241, 0): "/dev/vfio/0", vda: "/dev/vda"},
    )
    assert (nodes_of(spec), of_type(spec, "c"), of_type(spec, "b")) == ([], [], [])
    assert plan.dropped == ("/dev/tap7 (c 241:0)", "/dev/vda (b 254:0)", "/null (b 1:3)")


def test_a_rule_of_an_entry_that_goes_stays_for_one_that_stays() -> None:
    """Two names for one device; only one of them is claimed."""
    spec, _ = planned(
        [entry("/dev/a", "c", 10, 229), entry("/dev/fuse", "c", 10, 229)],
        [DENY_ALL, allow("c", 10, 229, "r")],
        grant("1", VDA, path="/dev/a"),
        guest=FUSE,
    )
    assert of_type(spec, "c") == [(True, "c", 10, 229, "r")]
    assert of_type(spec, "b") == [(True, "b", 254, 0, "r")]


def test_a_claimed_entry_takes_type_and_numbers_and_keeps_the_rest() -> None:
    asked = entry("/dev/./data", "c", 8, 0, fileMode=0o100640, uid=5, gid=6)
    spec, _ = planned([asked], [], grant("1", VDA, path="/dev/data"), user={"uid": 1, "gid": 2})
    (found,) = spec["linux"]["devices"]
    assert nodes_of(spec) == [("/dev/data", "b", 254, 0)]
    assert (found["fileMode"], found["uid"], found["gid"]) == (0o640, 5, 6)


def test_a_node_belongs_to_the_processs_user_where_nothing_else_is_asked() -> None:
    spec, _ = planned([], [], grant("1", VDB), user={"uid": 1000, "gid": 50})
    (found,) = spec["linux"]["devices"]
    assert (found["path"], found["uid"], found["gid"]) == ("/dev/vdb", 1000, 50)
    assert rules_of(spec)[-1] == (True, "b", 254, 16, "rwm")


def test_a_revoked_entry_is_not_the_hosts_again() -> None:
    """Its number on the host may be the guest's root disk."""
    _, plan = planned(
        [entry("/dev/a", "b", 254, 0)],
        [DENY_ALL, allow("b", 254, 0, "rwm")],
        grant("1", VDB, path="/dev/a"),
        guest={Numbers("b", 254, 0): "/dev/a"},
    )
    assert [rule for rule in all_rules(plan.rules, ()) if rule.get("major") == 254] == []
    assert [claim.path for claim in plan.claims] == ["/dev/a"]


def test_rules_have_one_line_for_a_number() -> None:
    """The kernel takes a rule for an access as a whole: `r` and `w` apart are not `rw`."""
    both = planned([], [], grant("1", VDA, permissions="r"), grant("2", VDA, permissions="w"))
    assert of_type(both[0], "b") == [(True, "b", 254, 0, "rw")]


PATHS = st.sampled_from([f"/dev/{letter}" for letter in "abcd"])
NUMBERS = st.builds(Numbers, st.sampled_from("bc"), st.integers(7, 9), st.integers(0, 2))


@given(
    st.dictionaries(PATHS, st.tuples(NUMBERS, NUMBERS)),
    st.dictionaries(NUMBERS, st.sampled_from(["r", "w", "rw"])),
)
def test_every_rule_follows_its_entry_whatever_the_numbers(
    devices: dict[str, tuple[Numbers, Numbers]], rights: dict[Numbers, str]
) -> None:
    """Host numbers and guest numbers from the same small set, so that they collide."""
    seen: dict[Numbers, Numbers] = {}
    for host, guest in devices.values():
        # One device has one number on each side.
        assume(seen.setdefault(host, guest) == guest and list(seen.values()).count(guest) == 1)
    entries = [entry(path, *host) for path, (host, _) in devices.items()]
    rules = [DENY_ALL, *(allow(*numbers, access) for numbers, access in rights.items())]
    granted = []
    for path, (_, guest) in devices.items():
        kind = NodeType(guest.type)
        there = node(f"/dev/guest{guest.type}{guest.minor}", guest.major, guest.minor, kind)
        granted.append(grant(f"d{path[-1]}", there, path=path))
    spec, _ = planned(entries, rules, *granted)
    expected = {guest: rights.get(host, "rwm") for host, guest in seen.items()}
    # Of the host's own rules only those are left that no entry has.
    expected |= {
        numbers: access
        for numbers, access in rights.items()
        if numbers not in seen and numbers not in expected
    }
    found = {Numbers(*rule[1:4]): rule[4] for rule in of_type(spec, "b") + of_type(spec, "c")}
    assert found == expected


def test_what_the_guest_has_is_asked_of_sysfs(tmp_path: Path) -> None:
    """DEVNAME has slashes where the device's own name has "!"."""
    for number, name in (("char/10:200", "net/tun"), ("block/254:0", "vda")):
        device = tmp_path / "dev" / number
        device.mkdir(parents=True)
        device.joinpath("uevent").write_text(f"MAJOR=1\nDEVNAME={name}\n")
    roots = Roots(sys=tmp_path)
    assert guest_path(roots, Numbers("c", 10, 200)) == "/dev/net/tun"
    assert guest_path(roots, Numbers("b", 254, 0)) == "/dev/vda"
    assert guest_path(roots, Numbers("b", 10, 200)) is None
    assert guest_path(roots, Numbers("c", 241, 0)) is None
