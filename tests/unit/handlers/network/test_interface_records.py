"""What the next agent has to know of names."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.state import StateStore
from agent.handlers.network.interface_records import InterfaceRecords

pytestmark = [pytest.mark.unit, pytest.mark.network]


def test_they_outlive_the_agent(tmp_path: Path) -> None:
    state = StateStore(tmp_path)
    records = InterfaceRecords(state)
    records.gave(2, "eth0")
    records.gave(2, "pci-02-00")
    records.took(2, "pci-02-00")
    records.found(3, "eth1")
    records.renaming({2: "eth0", 3: "eth1"})
    later = InterfaceRecords(state)
    assert later.spare == {2: ["eth0"]}
    assert later.asked == {3: "eth1"}
    assert later.former == {2: "eth0", 3: "eth1"}
    later.settled()
    later.keep([3])
    assert InterfaceRecords(state).former == {}
    assert InterfaceRecords(state).spare == {}
    assert InterfaceRecords(state).asked == {3: "eth1"}


def test_what_is_of_no_use_is_nothing(tmp_path: Path) -> None:
    state = StateStore(tmp_path)
    state.save("interfaces", "names", {"spare": [], "asked": "?"})
    assert InterfaceRecords(state).spare == {}
