"""Switching MIG with nvidia-smi, whose answers are those of NVIDIA's MIG user guide."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.core import commands
from agent.core.deadlines import Deadline
from agent.core.errors import AgentError, Reason
from agent.core.kinds import GpuInfo
from agent.core.undo import UndoStack
from agent.handlers.devices.gpus.mig import set_mig
from tests.fakes.device_jobs import FakeTool, attached, hands
from tests.fakes.hotplug import bench

pytestmark = [pytest.mark.unit, pytest.mark.devices]

BDF = "0000:41:00.0"
PROFILES = {"1g.10gb": 19, "2g.20gb": 14, "3g.40gb": 9}
LINE = "+-------------------------------------------------------+\n"
HEAD = (
    f"{LINE}| GPU instances:                                        |\n"
    "| GPU   Name             Profile  Instance   Placement  |\n"
    "|                          ID       ID       Start:Size |\n"
    "|=======================================================|\n"
)


@dataclass
class Gpu:
    """A GPU as nvidia-smi shows and changes it: instances are (profile, start) by id."""

    mode: str = "Disabled"
    pending: bool = False
    instances: dict[int, tuple[int, int]] = field(default_factory=dict)
    compute: dict[int, list[int]] = field(default_factory=dict)
    refuse: str = ""
    """Of calls that have this option."""
    says: str = "Insufficient Resources"
    _next: int = 1

    def answer(self, argv: list[str]) -> tuple[int, str]:
        assert argv[0] == "nvidia-smi"
        assert argv[argv.index("-i") + 1] == BDF
        words = [word for word in argv[1:] if word not in ("-i", BDF)]
        if self.refuse in words:
            return 19, f"Unable to do that on GPU  0: {self.says}\n"
        return self._change(words) or self._tell(words)

    def _tell(self, words: list[str]) -> tuple[int, str]:
        match words:
            case ["--query-gpu=mig.mode.current", "--format=csv,noheader"]:
                return 0, f"{self.mode}\n"
            case ["mig", "-lgi"]:
                return self._list()
            case ["mig", "-lci"]:
                return self._list_compute()
        raise AssertionError(f"nvidia-smi has no such options: {words}")

    def _change(self, words: list[str]) -> tuple[int, str] | None:
        match words:
            case ["-mig", value]:
                return self._set(value == "1")
            case ["mig", "-dci"]:
                self.compute.clear()
            case ["mig", "-dgi"]:
                assert not self.compute, "In use by another client"
                self.instances.clear()
            case ["mig", "-cgi", profiles, "-C"]:
                made = [self._make(text) for text in profiles.split(",")]
                self.compute.update({number: [0] for number in made})
                return 0, "".join(map(_created, made))
            case ["mig", "-cgi", place]:
                return 0, _created(self._make(place))
            case ["mig", "-gi", number, "-cci", profiles]:
                self.compute.setdefault(int(number), []).extend(map(int, profiles.split(",")))
            case _:
                return None
        return 0, ""

    def _set(self, enable: bool) -> tuple[int, str]:
        if self.pending:
            return 0, "Warning: MIG mode is in pending enable state for GPU 00000000:41:00.0\n"
        self.mode = "Enabled" if enable else "Disabled"
        return 0, f"{self.mode} MIG Mode for GPU 00000000:41:00.0\nAll done.\n"

    def _make(self, text: str) -> int:
        profile, _, start = text.partition(":")
        number = self._next
        self._next += 1
        taken = max((place + 1 for _, place in self.instances.values()), default=0)
        self.instances[number] = (PROFILES.get(profile) or int(profile), int(start or taken))
        return number

    def _list(self) -> tuple[int, str]:
        if not self.instances:
            return 6, "No GPU instances found: Not Found\n"
        rows = (
            f"|   0  MIG 3g.40gb       {profile:5}    {number:5}          {start}:4     |\n{LINE}"
            for number, (profile, start) in self.instances.items()
        )
        return 0, HEAD + "".join(rows)

    def _list_compute(self) -> tuple[int, str]:
        if not self.compute:
            return 6, "No compute instances found: Not Found\n"
        rows = (
            f"|   0   {number:4}    MIG 1c.3g.40gb   {profile:4}     {index:4}      {index}:1  |\n"
            for number, profiles in self.compute.items()
            for index, profile in enumerate(profiles)
        )
        return 0, "".join(rows)


def _created(number: int) -> str:
    return f"Successfully created GPU instance ID {number:2} on GPU  0 using profile MIG\n"


async def switch(
    tmp_path: Path, gpu: Gpu, profile: str = "1g.10gb", *, keep: bool = True
) -> FakeTool:
    tool = FakeTool(gpu.answer)
    async with bench(tmp_path) as guest, UndoStack("reconfigure") as undo:
        row = attached("g", "02/00", BDF, GpuInfo(vendor="nvidia"))
        made = hands(guest, "g", run=tool)
        await set_mig(made, row, profile, Deadline.after(30), undo)
        if keep:
            undo.commit()
    return tool


async def test_the_mode_is_enabled_and_instances_are_made(tmp_path: Path) -> None:
    gpu = Gpu()
    tool = await switch(tmp_path, gpu)
    assert gpu.mode == "Enabled"
    assert gpu.instances == {1: (19, 0)}
    assert tool.calls == [
        f"nvidia-smi -i {BDF} --query-gpu=mig.mode.current --format=csv,noheader",
        f"nvidia-smi -i {BDF} -mig 1",
        f"nvidia-smi -i {BDF} --query-gpu=mig.mode.current --format=csv,noheader",
        f"nvidia-smi mig -i {BDF} -lgi",
        f"nvidia-smi mig -i {BDF} -cgi 1g.10gb -C",
    ]


async def test_several_instances_at_once(tmp_path: Path) -> None:
    gpu = Gpu(mode="Enabled")
    await switch(tmp_path, gpu, "3g.40gb,1g.10gb")
    assert list(gpu.instances.values()) == [(9, 0), (19, 1)]


async def test_former_instances_go_first(tmp_path: Path) -> None:
    gpu = Gpu(mode="Enabled", instances={5: (9, 4)}, compute={5: [0]})
    tool = await switch(tmp_path, gpu)
    assert list(gpu.instances.values()) == [(19, 0)]
    steps = [call.split()[4] for call in tool.calls if " mig " in call]
    assert steps == ["-lgi", "-lci", "-dci", "-dgi", "-cgi"]


async def test_undo_brings_mode_and_instances_back(tmp_path: Path) -> None:
    """At their places and with their compute instances, whatever ids they get."""
    gpu = Gpu(
        mode="Enabled", instances={2: (9, 0), 1: (9, 4)}, compute={1: [0, 0], 2: [2]}, _next=7
    )
    await switch(tmp_path, gpu, keep=False)
    assert gpu.mode == "Enabled"
    assert sorted(gpu.instances.values()) == [(9, 0), (9, 4)]
    by_place = {gpu.instances[number][1]: profiles for number, profiles in gpu.compute.items()}
    assert by_place == {0: [2], 4: [0, 0]}


async def test_undo_of_a_gpu_without_mig(tmp_path: Path) -> None:
    gpu = Gpu()
    await switch(tmp_path, gpu, keep=False)
    assert (gpu.mode, gpu.instances) == ("Disabled", {})


@pytest.mark.parametrize("refuse", ["-cgi", "-dgi", "-dci"])
async def test_a_refusal_leaves_what_was_there(tmp_path: Path, refuse: str) -> None:
    gpu = Gpu(mode="Enabled", instances={1: (9, 4)}, compute={1: [0]}, refuse=refuse, _next=7)
    if refuse == "-cgi":
        gpu.refuse = "1g.10gb"
    with pytest.raises(AgentError) as caught:
        await switch(tmp_path, gpu)
    assert caught.value.reason is Reason.MODE_REFUSED
    assert "Insufficient Resources" in caught.value.message
    assert list(gpu.instances.values()) == [(9, 4)]
    assert list(gpu.compute.values()) == [[0]]


async def test_a_gpu_without_mig(tmp_path: Path) -> None:
    with pytest.raises(AgentError) as caught:
        await switch(tmp_path, Gpu(mode="[N/A]"))
    assert caught.value.reason is Reason.MODE_REFUSED
    assert "has no MIG" in caught.value.message


async def test_a_mode_that_stays_pending(tmp_path: Path) -> None:
    """The tool ends with 0 then: somebody still has the GPU open."""
    with pytest.raises(AgentError) as caught:
        await switch(tmp_path, Gpu(pending=True))
    assert caught.value.reason is Reason.MODE_REFUSED
    assert "pending enable state" in caught.value.message


async def test_an_image_without_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    async with bench(tmp_path) as guest, UndoStack("reconfigure") as undo:
        row = attached("g", "02/00", BDF, GpuInfo(vendor="nvidia"))
        made = hands(guest, "g", run=commands.run)
        with pytest.raises(AgentError) as caught:
            await set_mig(made, row, "1g.10gb", Deadline.after(30), undo)
    assert caught.value.reason is Reason.MODE_REFUSED
    assert caught.value.hint is not None
    assert "--package nvidia-smi" in caught.value.hint


@pytest.mark.parametrize(
    "profile",
    ["", "1g", "1g.10gb ", "-h", "1g.10gb,", "9", "1g.10gb;reboot", ",".join(["1g.5gb"] * 8)],
)
async def test_what_is_no_profile_is_refused_before_anything_runs(
    tmp_path: Path, profile: str
) -> None:
    with pytest.raises(AgentError) as caught:
        await switch(tmp_path, Gpu(), profile)
    assert caught.value.reason is Reason.BAD_FIELD


@pytest.mark.parametrize("profile", ["1g.10gb+me", "1g.24gb-me", "1g.24gb+me.all", "4g.48gb+gfx"])
async def test_profiles_with_more_or_less_engines(tmp_path: Path, profile: str) -> None:
    PROFILES.setdefault(profile, 20)
    gpu = Gpu(mode="Enabled")
    await switch(tmp_path, gpu, profile)
    assert list(gpu.instances.values()) == [(20, 0)]
