"""Modules for the sandbox: loaded with the parameters that were asked for, or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.roots import Roots
from agent.core.sandbox import KernelModule
from agent.handlers.guest.modules import Modules, check_module
from tests.fakes.kmod import FakeKmod, Module

pytestmark = [pytest.mark.unit, pytest.mark.operations]


class Bench:
    def __init__(self, top: Path) -> None:
        self.kmod = FakeKmod(top / "sys")
        self.kmod.knows = {
            "loop": Module(parameters=(("max_loop", "8"), ("exclusive", "N")), hidden=("secret",)),
            "crc": Module(),
            "xfs": Module(needs=("crc",)),
            "ext4": Module(builtin=True, parameters=(("depth", "3"),)),
        }
        self.kmod.aliases = {"fs-xfs": "xfs"}
        self.modules = Modules(Roots(run=top, sys=top / "sys"), run=self.kmod)
        self.noted: list[tuple[str, ...]] = []

    async def load(self, name: str, *parameters: str) -> None:
        module = KernelModule(name=name, parameters=parameters)
        await self.modules.load(module, self.noted.append, Deadline.after(10))

    async def refusal(self, name: str, *parameters: str) -> str:
        with pytest.raises(AgentError) as caught:
            await self.load(name, *parameters)
        assert caught.value.reason is Reason.MODULE_REFUSED
        assert caught.value.fields["module"] == name
        return caught.value.message


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


async def test_a_module_comes_with_its_parameters_and_what_it_needs(bench: Bench) -> None:
    await bench.load("loop", "max_loop=3")
    await bench.load("fs-xfs")
    assert bench.kmod.loaded() == {"loop", "crc", "xfs"}
    assert bench.noted == [("loop",), ("crc", "xfs")]
    assert ["modprobe", "--", "loop", "max_loop=3"] in bench.kmod.calls


async def test_what_will_be_loaded_is_noted_before(bench: Bench) -> None:
    """An agent that dies in between leaves a note of what may be there, and not the other way."""
    bench.kmod.refuses.add("xfs")
    await bench.refusal("xfs")
    assert bench.noted == [("crc", "xfs")]


async def test_what_is_loaded_already_is_fine_and_not_ours(bench: Bench) -> None:
    bench.kmod.put("crc")
    bench.kmod.put("loop", "max_loop=3", "exclusive=Y")
    await bench.load("xfs")
    await bench.load("loop", "max_loop=0x3", "exclusive=1")
    assert bench.noted == [("xfs",)]


async def test_loaded_already_with_another_parameter_is_refused(bench: Bench) -> None:
    bench.kmod.put("loop")
    said = await bench.refusal("loop", "max_loop=3")
    assert said == "module loop: it is in the kernel already, with max_loop=8 and not 3"


async def test_loaded_already_with_one_that_nobody_can_see_is_refused(bench: Bench) -> None:
    bench.kmod.put("loop")
    assert "shows no parameter secret" in await bench.refusal("loop", "secret=1")


async def test_built_in_is_loaded_already(bench: Bench) -> None:
    bench.kmod.put("ext4")
    await bench.load("ext4", "depth=3")
    assert "with depth=3 and not 4" in await bench.refusal("ext4", "depth=4")
    assert bench.noted == []


async def test_a_parameter_that_it_does_not_have_is_refused(bench: Bench) -> None:
    """The kernel warns and loads it without."""
    assert "shows no parameter bogus" in await bench.refusal("loop", "bogus=1")


async def test_one_that_sysfs_does_not_show_is_believed(bench: Bench) -> None:
    await bench.load("loop", "secret=1")


async def test_the_reason_is_kmods_own(bench: Bench) -> None:
    assert "Module nbd not found in directory" in await bench.refusal("nbd")
    bench.kmod.refuses.add("loop")
    assert "could not insert 'loop': No such device" in await bench.refusal("loop")


async def test_unloading_goes_backwards_and_past_what_stays(bench: Bench) -> None:
    await bench.load("loop")
    await bench.load("xfs")
    bench.kmod.busy = {"xfs"}
    stay = await bench.modules.unload(("loop", "crc", "xfs"), Deadline.after(10))
    assert stay == {"xfs": "Module xfs is in use"}
    removed = [call[-1] for call in bench.kmod.calls if call[0] == "rmmod"]
    assert removed == ["xfs", "crc", "loop"]


async def test_unloading_what_was_never_loaded_is_nothing(bench: Bench) -> None:
    assert await bench.modules.unload(("loop",), Deadline.after(10)) == {}
    assert bench.kmod.calls == []


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("", ()),
        ("-r", ()),
        ("--remove", ()),
        ("../x", ()),
        ("a b", ()),
        ("a\n", ()),
        ("loop", ("max_loop",)),
        ("loop", ("a=1 b=2",)),
        ("loop", ('a="1',)),
        ("loop", ("a=1\n",)),
        ("loop", ("-r=1",)),
    ],
)
def test_what_kmod_could_take_for_something_else_is_refused(
    name: str, parameters: tuple[str, ...]
) -> None:
    with pytest.raises(AgentError) as caught:
        check_module(KernelModule(name=name, parameters=parameters), "modules[0]")
    assert caught.value.reason is Reason.BAD_FIELD


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("virtio-blk", ()),
        ("pci:v00001AF4d00001001sv*", ()),
        ("fs-xfs", ("debug=",)),
        ("bonding", ("arp_ip_target=10.0.0.1,10.0.0.2",)),
    ],
)
def test_names_aliases_and_plain_parameters_are_fine(
    name: str, parameters: tuple[str, ...]
) -> None:
    check_module(KernelModule(name=name, parameters=parameters), "modules[0]")
