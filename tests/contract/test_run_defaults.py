"""Where the command line has to send a whole list, it is the guest's own with a change."""

from __future__ import annotations

import json

import pytest

from agent.handlers.runtime.spec import configuration as spec
from innkeeper.cli import ocidefaults

pytestmark = [pytest.mark.contract, pytest.mark.operations]


def test_the_two_lists_agree() -> None:
    asked = spec.parse_spec(json.dumps({"process": {"args": ["true"]}}).encode())
    around = spec.Surroundings(root="/root", cgroup="/pods/x/y", mounts=())
    whole = spec.complete(asked, around)
    assert whole["mounts"] == ocidefaults.mounts()
    found = whole["process"]["capabilities"]
    assert set(found) == {"bounding", "effective", "permitted"}
    assert all(set(names) == set(ocidefaults.CAPABILITIES) for names in found.values())
    kinds = [each["type"] for each in whole["linux"]["namespaces"]]
    assert kinds == list(ocidefaults.NAMESPACES)
