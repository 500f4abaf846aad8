"""Where mounts go in a container's root: hostile roots, and roots that change meanwhile.

One VM for all. The roots lie in a storage in memory, where a container makes them.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from innkeeper.shim import virtiofsd
from innkeeper.shim.client import VmSpec
from innkeeper.shim.errors import ShimError
from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import host_pb2 as host
from innkeeper.v1 import storages_pb2 as storages
from innkeeper.v1 import types_pb2 as types
from tests.fakes.plugs import plug
from tests.vm.guest import PATH, Guest, booted
from tests.vm.observer import Observer, observing
from tests.vm.refusals import Refusal, refusal
from tests.vm.test_shares import servers_of

pytestmark = [pytest.mark.vm, pytest.mark.containers]

MIB = 1 << 20
ROOTS = "/run/innkeeper/storages/roots"
IS_THE_ROOT = "cat /made-by-the-test"
LINKS = {
    "proc-link": "/proc",
    "proc-root": "/proc/1/root",
    "proc-fd": "/proc/self/fd/3",
    "proc-up": "../../proc/sys",
    "top": "/",
    "loop": "pool",
    "pool": "/loop",
    "etc/zone": "missing",
    "var/run": "/run",
}
MAKE = """
set -e
mkdir -p /roots/root
cd /roots/root
mkdir -p bin dev proc sys etc var
cp /bin/busybox bin/busybox
for name in sh cat ls stat grep mkdir touch; do ln -s busybox bin/$name; done
echo right > made-by-the-test
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def machine(image: Path) -> AsyncIterator[Guest]:
    async with booted(VmSpec(name="targets", image=f"{image}/", transport="serial")) as guest:
        for name in ("roots", "data"):
            source = storages.TmpfsSource(size=64 * MIB, mode=0o755)
            await attach(guest, storages.Storage(id=name, tmpfs=source))
        links = "\n".join(f"ln -s {target} {name}" for name, target in LINKS.items())
        made = await guest.run(
            f"{MAKE}{links}\necho content > /data/file",
            storages=(mount("roots", "/roots"), mount("data", "/data")),
        )
        assert made.code == 0, made
        yield guest


@pytest_asyncio.fixture(loop_scope="session")
async def observer(machine: Guest) -> AsyncIterator[Observer]:
    async with observing(machine) as running:
        yield running


async def attach(guest: Guest, storage: storages.Storage) -> None:
    await guest.storages.Attach(storages.AttachStorageRequest(storage=storage))


async def detach(guest: Guest, name: str) -> None:
    await guest.storages.Detach(storages.DetachStorageRequest(id=name))


def mount(name: str, destination: str, *options: str) -> containers.StorageMount:
    return containers.StorageMount(storage_id=name, destination=destination, options=options)


def in_root(
    script: str,
    *mounts: containers.StorageMount,
    spec: dict[str, Any] | None = None,
    layer: bool = True,
    **parts: Any,
) -> containers.CreateContainerRequest:
    """A container of that root, given as a path in a storage unless `parts` say otherwise."""
    process = {"args": ["/bin/sh", "-c", script], "cwd": "/", "env": [PATH]}
    return containers.CreateContainerRequest(
        id="c",
        spec=json.dumps({"process": process, **(spec or {})}).encode(),
        writable_layer=layer,
        storages=mounts,
        **({"path": f"{ROOTS}/root"} | parts if "storage_id" not in parts else parts),
    )


async def run(guest: Guest, request: containers.CreateContainerRequest) -> str:
    await guest.containers.Create(request)
    try:
        await guest.containers.Start(containers.StartContainerRequest(id="c"))
        finished = await guest.follow(types.ProcessRef(container_id="c"))
    finally:
        await guest.remove("c")
    assert finished.code == 0, finished
    return finished.text


async def refused(guest: Guest, request: containers.CreateContainerRequest) -> Refusal:
    return await refusal(guest.containers.Create(request))


def bind(destination: str, source: str = "/usr/lib/os-release") -> dict[str, Any]:
    options = ["bind", "ro"]
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": destination, "type": "bind", "source": source, "options": options},
    ]
    return {"mounts": mounts}


async def test_missing_parents_are_made_inside_with_the_usual_mode(machine: Guest) -> None:
    script = "cat /deep/er/data/file; stat -c %a /deep /deep/er /run /run/x"
    places = mount("data", "/deep/er/data"), mount("data", "/var/run/x/y")
    text = await run(machine, in_root(script, *places))
    assert text.split() == ["content", *["755"] * 4]


@pytest.mark.parametrize("destination", ["/etc/zone", "/new/er/file"])
async def test_a_file_where_nothing_is_yet(machine: Guest, destination: str) -> None:
    """A relative link that dangles leads beside itself, not to the top (case 59)."""
    script = f"grep -c Debian {destination}; cd /etc; cat missing || cat {destination}"
    text = await run(machine, in_root(script, spec=bind(destination)))
    assert "Debian" in text
    assert await machine.probe("ls -d /guest/missing 2>/dev/null || echo none") == "none\n"


@pytest.mark.parametrize("link", ["proc-link/sys", "proc-root/etc", "proc-fd", "proc-up/kernel"])
async def test_a_link_into_proc_is_refused(machine: Guest, observer: Observer, link: str) -> None:
    before = await observer.census()
    for request in (in_root("", mount("data", f"/{link}")), in_root("", spec=bind(f"/{link}"))):
        found = await refused(machine, request)
        assert (found.code, found.reason) == (
            grpc.StatusCode.PERMISSION_DENIED,
            "LEADS_OUTSIDE",
        )
        assert found.fields["target"] == f"/{link}"
    await observer.returns_to(before)


@pytest.mark.parametrize(
    ("destination", "errno"),
    [("/loop/x", "ELOOP"), ("/top", "EBUSY"), ("/made-by-the-test/x", "ENOTDIR")],
)
async def test_what_cannot_be_a_target_is_named(
    machine: Guest, destination: str, errno: str
) -> None:
    """A circle of links ends (case 57)."""
    for request in (in_root("", mount("data", destination)), in_root("", spec=bind(destination))):
        found = await refused(machine, request)
        assert (found.code, found.reason, found.fields["errno"], found.fields["target"]) == (
            *(grpc.StatusCode.FAILED_PRECONDITION, "MOUNT_REFUSED"),
            *(errno, destination),
        )
        assert destination in found.text


@pytest.mark.parametrize("destination", ["/", "/./", "/..", "/etc/../x", "etc", ""])
async def test_what_is_no_destination(machine: Guest, destination: str) -> None:
    for request, reason in (
        (in_root("", mount("data", destination)), "BAD_FIELD"),
        (in_root("", spec=bind(destination)), "BAD_SPEC"),
    ):
        found = await refused(machine, request)
        assert (found.code, found.reason) == (grpc.StatusCode.INVALID_ARGUMENT, reason)


async def test_a_target_that_is_missing_in_a_read_only_root(machine: Guest) -> None:
    """One clear error; with a writable layer, or where it is there already, all is well."""
    directory = storages.StorageDirectory(storage_id="roots", path="root")
    source = storages.BindSource(directory=directory)
    await attach(machine, storages.Storage(id="fixed", bind=source, read_only=True))
    here: dict[str, Any] = {"storage_id": "fixed"}
    for destination, spec in (("/missing/x", None), ("/missing-file", bind("/missing-file"))):
        mounts = () if spec else (mount("data", destination),)
        found = await refused(machine, in_root("", *mounts, spec=spec, layer=False, **here))
        assert (found.code, found.reason, found.fields["errno"], found.fields["target"]) == (
            *(grpc.StatusCode.FAILED_PRECONDITION, "MOUNT_REFUSED"),
            *("EROFS", destination),
        )
    script = "cat {0}/file; cat /made-by-the-test"
    there = in_root(script.format("/var"), mount("data", "/var"), layer=False, **here)
    made = in_root(script.format("/missing/x"), mount("data", "/missing/x"), **here)
    for request in (there, made):
        assert await run(machine, request) == "content\nright\n"
    await detach(machine, "fixed")


async def test_a_storage_that_is_a_file(machine: Guest) -> None:
    directory = storages.StorageDirectory(storage_id="data", path="file")
    await attach(machine, storages.Storage(id="f", bind=storages.BindSource(directory=directory)))
    places = mount("f", "/etc/conf/file"), mount("f", "/etc/zone", "ro", "nosuid")
    text = await run(machine, in_root("cat /etc/conf/file /etc/zone; ls /etc/missing", *places))
    assert text == "content\ncontent\n/etc/missing\n"
    found = await refused(machine, in_root("", mount("f", "/etc")))
    assert (found.reason, found.fields["errno"]) == ("MOUNT_REFUSED", "ENOTDIR")
    await detach(machine, "f")


async def test_options_of_storages_in_containers(machine: Guest) -> None:
    """What the kernel shows of them, in the container's own table."""
    cases = {
        "/a": (),
        "/b": ("ro", "nosuid", "nodev", "noexec"),
        "/c": ("bind", "rslave"),
        "/d": ("rbind", "rslave", "noatime"),
        "/e": ("private", "nodiratime"),
    }
    places = [mount("data", place, *options) for place, options in cases.items()]
    lines = (await run(machine, in_root("grep ' /[a-e] ' /proc/self/mountinfo", *places))).split(
        "\n"
    )
    shown = {words[4]: (words[5].split(","), words[6]) for line in lines if (words := line.split())}
    assert shown["/a"][0][0] == "rw"
    assert {"ro", "nosuid", "nodev", "noexec"} <= set(shown["/b"][0])
    assert "noatime" in shown["/d"][0]
    assert "nodiratime" in shown["/e"][0]
    # Nothing of it is passed on: the field of "shared:N" and "master:N" is absent.
    assert {tag for _, tag in shown.values()} == {"-"}


@pytest.mark.parametrize("options", [(), ("exec", "suid", "rw"), ("noatime",)])
async def test_flags_of_a_storage_hold_in_containers(
    machine: Guest, options: tuple[str, ...]
) -> None:
    """Whatever a container asks for (case 62)."""
    source = storages.BindSource(directory=storages.StorageDirectory(storage_id="data"))
    words = ["ro", "nosuid", "nodev", "noexec"]
    await attach(machine, storages.Storage(id="strict", bind=source, options=words))
    script = "grep ' /s ' /proc/self/mountinfo; touch /s/x 2>&1 || true"
    text = await run(machine, in_root(script, mount("strict", "/s", *options)))
    await detach(machine, "strict")
    assert set(words) <= set(text.split()[5].split(",")), text
    assert "Read-only file system" in text


@contextmanager
def stopped(processes: list[int]) -> Iterator[None]:
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


async def test_a_server_that_hangs_costs_no_more_than_the_deadline(
    machine: Guest, observer: Observer, tmp_path: Path
) -> None:
    """What has to ask the server is given up; other containers are none the wiser."""
    try:
        virtiofsd.find()
    except ShimError as error:
        pytest.skip(str(error))
    (tmp_path / "folder/root").mkdir(parents=True)
    await machine.host.Plug(plug("share", share=host.Share(directory=str(tmp_path))))
    served = storages.VirtiofsSource(tag="share")
    await attach(machine, storages.Storage(id="served", virtiofs=served))
    point = "/run/innkeeper/storages/served"
    before = await observer.census()
    slow = (
        in_root("", path=f"{point}/folder/root"),
        in_root("", spec=bind("/x", f"{point}/folder")),
    )
    with stopped(servers_of(tmp_path)):
        for request in slow:
            request.timeout_seconds = 2
            found = await refused(machine, request)
            assert (found.code, found.reason) == (
                grpc.StatusCode.DEADLINE_EXCEEDED,
                "OPERATION_TIMED_OUT",
            )
            assert await run(machine, in_root(IS_THE_ROOT)) == "right\n"
    await observer.returns_to(before)
    assert await run(machine, in_root("ls /s", mount("served", "/s"))) == "folder\n"
    await detach(machine, "served")
    await machine.host.Unplug(host.UnplugRequest(id="share"))


SWAP = """
cd /roots
mkdir -p root/target source
ln -s / out
ln -s /usr/lib/innkeeper source-out
ln -s /proc/self root/proc-target
while :; do
    mv root real; mv out root; mv root out; mv real root
    mv source real-source; mv source-out source; mv source source-out; mv real-source source
    mv root/target root/real; mv root/proc-target root/target
    mv root/target root/proc-target; mv root/real root/target
done
"""


@pytest.mark.timeout(600)
async def test_a_root_that_is_led_elsewhere_while_it_is_used(
    machine: Guest, observer: Observer
) -> None:
    """Another container that may write to the storage puts links to the guest's root and its
    files, and into /proc, where the root, a source and a target were a moment ago."""
    look = "find /guest/run /guest/tmp /guest/mnt -xdev | grep -v innkeeper/"
    hostile = await machine.start(SWAP, storages=(mount("roots", "/roots"),))
    before = await observer.ask(look)
    outcomes: dict[str, int] = {}
    for number in range(36):
        request = in_root(
            f"{IS_THE_ROOT}; ls /usr/lib/innkeeper /source/rootfs 2>/dev/null; exit 0",
            *([mount("data", "/target/deep")] if number % 2 else []),
            spec=bind("/source", f"{ROOTS}/source") if number % 3 else None,
            layer=number % 4 < 2,
        )
        outcome = await _outcome(machine, request)
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    await machine.remove(hostile)
    print("OUT", outcomes)
    assert await observer.ask(look) == before
    assert set(outcomes) <= {"right\n", *_ALLOWED}, outcomes
    assert "right\n" in outcomes


# The root, or what is in it, was not there; or it was seen that it is a link by now.
_ALLOWED = ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "PERMISSION_DENIED")


async def _outcome(guest: Guest, request: containers.CreateContainerRequest) -> str:
    try:
        return await run(guest, request)
    except grpc.aio.AioRpcError as error:
        print("ERR", error.details())
        return str(error.code().name)
