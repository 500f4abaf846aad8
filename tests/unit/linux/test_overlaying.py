"""Overlays: a layer at a time where the kernel takes that, else all by their descriptors."""

from __future__ import annotations

import errno

import pytest

from agent.linux.mountapi import MountAttribute
from agent.linux.mountcalls import FileRefusal, Location, MountOption, OverlayMount
from agent.linux.mounting import MountFlag
from agent.linux.mountmaking import make
from tests.fakes.mount_kernel import FakeKernel

pytestmark = [pytest.mark.unit, pytest.mark.storage]

BAD_VALUE = "overlay: Bad value for 'lowerdir+'"
UNKNOWN = "overlay: Unknown parameter 'lowerdir+'"
LAYERS = (
    Location(root="/l/a,b"),
    Location(root="/l/b\\c"),
    Location(root="/l/" + "c" * 253),
    Location(root="/l", path="d"),
)
CALL = OverlayMount(
    lowers=LAYERS,
    upper=Location(root="/u", path="upper"),
    work=Location(root="/u", path="work"),
    options=(MountOption(key="metacopy", value="on"), MountOption(key="volatile")),
    flags=MountFlag.NODEV,
)


class Overlay(FakeKernel):
    """What fsopen("overlay") gives; `unknown` is the kernel's word on "lowerdir+" alone."""

    def __init__(self, line: str | None, **errors: int) -> None:
        super().__init__(**errors)
        self.log = (line,) if line else ()

    def set_flag(self, context: int, key: str) -> None:
        super().set_flag(context, key)
        if key == "lowerdir+" and self.log:
            raise OSError(errno.EINVAL, "fsconfig(lowerdir+): Invalid argument")

    def after_the_question(self) -> list[tuple[object, ...]]:
        start = self.calls.index(("flag", "lowerdir+")) + 1
        return [call for call in self.calls[start:] if call[0] != "open"]


def test_layers_go_one_by_one() -> None:
    kernel = Overlay(BAD_VALUE)
    make(CALL, "/t", kernel)
    assert kernel.after_the_question() == [
        ("fsopen", "context of overlay"),
        ("set", "source", "overlay"),
        ("set", "lowerdir+", "/l/a,b"),
        # A backslash, over 255 bytes, and below a root that others write to.
        ("set", "lowerdir+", "fd of /l/b\\c"),
        ("set", "lowerdir+", "fd of /l/" + "c" * 253),
        ("set", "lowerdir+", "fd of /l|d"),
        ("set", "upperdir", "fd of /u|upper"),
        ("set", "workdir", "fd of /u|work"),
        ("set", "metacopy", "on"),
        ("flag", "volatile"),
        ("create",),
        ("fsmount", "mount", MountAttribute.NODEV),
        ("move_mount", "mount", "/t"),
    ]
    assert kernel.open == {}


@pytest.mark.parametrize("line", [UNKNOWN, None])
def test_kernels_that_do_not_know_single_layers(line: str | None) -> None:
    """Linux 6.5 says so; one before takes any word at first."""
    kernel = Overlay(line)
    make(CALL, "/t", kernel)
    change, mount, back = kernel.after_the_question()
    assert (change, back) == (("fchdir", "/proc/self/fd"), ("fchdir", "/"))
    assert mount[:5] == ("mount", "overlay", "fd of /t", "overlay", MountFlag.NODEV)
    lowers, upper, work, *options = str(mount[5]).split(",")
    assert lowers.removeprefix("lowerdir=").replace(":", "").isdigit()
    assert lowers.count(":") == 3
    assert upper.removeprefix("upperdir=").isdigit()
    assert work.removeprefix("workdir=").isdigit()
    assert options == ["metacopy=on", "volatile"]
    assert kernel.open == {}


def test_five_hundred_layers_fit_in_a_page() -> None:
    kernel = Overlay(None)
    lowers = tuple(Location(root=f"/layers/{'x' * 200}/{number}") for number in range(500))
    make(OverlayMount(lowers=lowers), "/t", kernel)
    (mount,) = (call for call in kernel.calls if call[0] == "mount")
    assert len(str(mount[5])) <= 4095
    assert str(mount[5]).count(":") == 499


def test_a_kernel_without_the_calls() -> None:
    kernel = FakeKernel(fsopen=errno.ENOSYS)
    make(CALL, "/t", kernel)
    assert [call[0] for call in kernel.calls if call[0] not in ("open", "fchdir")] == [
        "fsopen",
        "mount",
    ]


@pytest.mark.parametrize("line", [BAD_VALUE, UNKNOWN])
def test_one_layer_alone_lies_on_the_empty_directory_below(line: str) -> None:
    """The kernel wants two lower layers where there is no upper one."""
    kernel = Overlay(line)
    make(OverlayMount(lowers=LAYERS[:1]), "/t", kernel)
    if line == BAD_VALUE:
        layers = [call[2] for call in kernel.calls if call[:2] == ("set", "lowerdir+")]
        assert layers == ["/l/a,b", "fd of /t"]
    else:
        (mount,) = (call for call in kernel.calls if call[0] == "mount")
        assert str(mount[5]).count(":") == 1


def test_without_an_upper_layer_it_is_read_only() -> None:
    kernel = Overlay(BAD_VALUE)
    make(OverlayMount(lowers=LAYERS), "/t", kernel)
    assert ("flag", "ro") in kernel.calls
    assert ("fsmount", "mount", MountAttribute.RDONLY) in kernel.calls


def test_an_option_too_long_for_one_string_takes_the_old_call() -> None:
    kernel = Overlay(BAD_VALUE)
    option = MountOption(key="context", value="x" * 300)
    make(OverlayMount(lowers=LAYERS, options=(option,)), "/t", kernel)
    assert [call[0] for call in kernel.calls if call[0] != "open"] == ["fchdir", "mount", "fchdir"]


@pytest.mark.parametrize("number", [errno.ENODEV, errno.EPERM])
def test_other_refusals_are_final(number: int) -> None:
    kernel = FakeKernel(fsopen=number)
    with pytest.raises(FileRefusal) as caught:
        make(CALL, "/t", kernel)
    assert caught.value.errno == number
    assert kernel.calls[-1][0] == "fsopen"
    assert kernel.open == {}
