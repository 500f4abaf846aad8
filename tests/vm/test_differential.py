"""The same small specifications through plain crun and through the agent: what the process
sees differs by what `differences.json` says, and by nothing else.

An entry of that list that no specification needs fails as well: it would hide something.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import tarfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from innkeeper.v1 import containers_pb2 as containers
from innkeeper.v1 import types_pb2 as types
from tests.vm.guest import DEFAULT_ROOT, Guest
from tests.vm.small_specs import WITNESS, Spec, specs

pytestmark = [pytest.mark.vm, pytest.mark.containers, pytest.mark.timeout(900)]

_AT_ONCE = 4
_PATIENCE = 120.0
"""Seconds for a step of one of them: the witnesses of the others keep an emulated CPU busy."""

# The specifications come as an archive: one argument of a program is at most 128 KiB.
_PLAIN = """
set -e
base64 -d <<END | tar -xz -C /guest/tmp
{archive}
END
# In the guest's own mount namespace, because there are no user namespaces in a chroot
# (user_namespaces(7)); and a cgroup can't be entered from another cgroup namespace
# (nsdelegate, cgroup-v2.rst).
exec chroot /guest python3 -I -S -c '
import os
opened = [os.open("/proc/1/ns/" + kind, os.O_RDONLY | os.O_CLOEXEC) for kind in ("cgroup", "mnt")]
for namespace in opened:
    os.setns(namespace)
os.execv("/usr/bin/busybox", ["sh", "/tmp/plainly"])'
"""
_PLAINLY = r"""
set -e
for kind in cgroup ipc mnt net pid time user uts; do readlink /proc/1/ns/$kind; done
flags=$(sed -n 's|^[^ ]* /sys/fs/cgroup cgroup2 \([^ ]*\) .*|\1|p' /proc/mounts)
mkdir /tmp/layer
mount -t tmpfs -o mode=755 layer /tmp/layer
for spec in /tmp/plain/*.json; do
    name=$(basename "$spec" .json)
    bundle=/tmp/layer/$name
    mkdir -p $bundle/upper $bundle/work $bundle/rootfs
    mount -t overlay -o lowerdir={root},upperdir=$bundle/upper,workdir=$bundle/work \
        overlay $bundle/rootfs
    # Where users are its own crun can't make it in a root that isn't theirs.
    : > $bundle/rootfs/witness
    cp "$spec" $bundle/config.json
    printf '\n== %s\n' "$name"
    # crun gives its standard streams to the user of the process: they must be no devices.
    : | crun --root /tmp/layer/state --cgroup-manager=cgroupfs \
        run --bundle $bundle plain-$name 2>&1 || echo "!! ended with $?"
    # Who mounts cgroups without a namespace of them sets their flags for the whole guest
    # (nsdelegate, cgroup-v2.rst).
    mount -t cgroup2 -o remount,$flags cgroup2 /sys/fs/cgroup
    umount $bundle/rootfs
done
umount /tmp/layer
rm -r /tmp/layer /tmp/plain /tmp/plainly
find /sys/fs/cgroup/plain -depth -type d -exec rmdir {{}} +
"""


@dataclass(frozen=True, slots=True)
class Allowed:
    """A line (`SECTION<tab>fact`, made comparable) that one side alone may have, and why."""

    side: str
    line: re.Pattern[str]
    why: str


def allowed() -> list[Allowed]:
    text = Path(__file__).with_name("differences.json").read_text(encoding="utf-8")
    return [
        Allowed(each["side"], re.compile(each["line"]), each["why"]) for each in json.loads(text)
    ]


async def test_what_a_process_sees_is_what_plain_crun_would_show_it(guest: Guest) -> None:
    small = specs()
    assert len(small) >= 60
    named = {f"s{number:02}": name for number, name in enumerate(small)}
    bundled = {key: small[name] for key, name in named.items()}
    shared, plain = await _run_plainly(guest, bundled)
    ours = await _run_all(guest, bundled)
    assert plain.keys() == ours.keys() == named.keys()
    entries, used = allowed(), Counter[int]()
    surprises = [
        f"{named[key]}: {side} alone: {line}"
        for key in named
        for side, line in _differences(_facts(plain[key], shared), _facts(ours[key], shared))
        if not _is_allowed(entries, side, line, used)
    ]
    assert not surprises, "\n".join(surprises)
    assert [entry.why for at, entry in enumerate(entries) if not used[at]] == []


async def _run_plainly(guest: Guest, small: dict[str, Spec]) -> tuple[set[str], dict[str, str]]:
    """The guest's own namespaces, and what the witness said under crun, by specification."""
    script = _PLAIN.format(archive=_archive(small))
    shared, *said = re.split(r"^== (s\d\d)\n", await guest.probe(script), flags=re.MULTILINE)
    return set(shared.split()), dict(zip(said[::2], said[1::2], strict=True))


def _archive(small: dict[str, Spec]) -> str:
    """`witness` and `plain/KEY.json`, each with a cgroup of its own."""
    files = {"witness": WITNESS, "plainly": _PLAINLY.format(root=DEFAULT_ROOT)}
    for key, spec in small.items():
        whole = {**spec, "linux": {**spec["linux"], "cgroupsPath": f"/plain/plain-{key}"}}
        files[f"plain/{key}.json"] = json.dumps(whole)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(text.encode()), 0o755
            archive.addfile(member, io.BytesIO(text.encode()))
    return base64.b64encode(packed.getvalue()).decode()


async def _run_all(guest: Guest, small: dict[str, Spec]) -> dict[str, str]:
    """The same through the agent."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(key: str, spec: Spec) -> tuple[str, str]:
        async with room:
            return key, await _run(guest, key, spec)

    return dict(await asyncio.gather(*(one(*each) for each in small.items())))


async def _run(guest: Guest, key: str, spec: Spec) -> str:
    request = containers.CreateContainerRequest(
        id=key,
        spec=json.dumps(spec).encode(),
        path=DEFAULT_ROOT,
        writable_layer=True,
        timeout_seconds=_PATIENCE,
    )
    await guest.containers.Create(request)
    try:
        start = containers.StartContainerRequest(id=key, timeout_seconds=_PATIENCE)
        await guest.containers.Start(start)
        finished = await guest.follow(types.ProcessRef(container_id=key))
    finally:
        remove = containers.RemoveContainerRequest(id=key, timeout_seconds=_PATIENCE)
        await guest.containers.Remove(remove)
    ended = f"!! ended with {finished.code}\n" if finished.code else ""
    return finished.text + finished.stderr.decode() + ended


def _is_allowed(entries: list[Allowed], side: str, line: str, used: Counter[int]) -> bool:
    hits = [at for at, e in enumerate(entries) if e.side == side and e.line.fullmatch(line)]
    used.update(hits)
    return bool(hits)


def _differences(plain: list[str], ours: list[str]) -> Iterable[tuple[str, str]]:
    crun, agent = Counter(plain), Counter(ours)
    yield from (("crun", line) for line in (crun - agent).elements())
    yield from (("agent", line) for line in (agent - crun).elements())


def _facts(text: str, shared: set[str]) -> list[str]:
    """The lines of a witness, without what is another in each run of the same container."""
    return [_comparable(line, shared) for line in text.splitlines() if line]


def _comparable(line: str, shared: set[str]) -> str:
    section, tab, fact = line.partition("\t")
    match section:
        case "mount":
            fact = _mount_fact(fact)
        case "namespace":
            path, _, target = fact.replace("'", "").partition(" -> ")
            fact = f"{path} {'of the guest' if target in shared else 'of its own'}"
        case "file":
            fact = re.sub(r"(plain-)?s\d\d$", "ID", fact)
        case _:
            pass
    return section + tab + fact


def _mount_fact(line: str) -> str:
    """mountinfo without ids and device numbers, with layers and roots by what they are."""
    before, _, after = line.partition(" - ")
    _, _, _, root, target, options, *tags = before.split(" ")
    tags = [re.sub(r"\d+", "N", tag) for tag in tags]
    kind, source, more = after.split(" ", 2)
    if kind == "overlay":
        source, more = "overlay", re.sub(r"(lower|upper|work)dir(\+)?=[^,]*", r"\1", more)
    return " ".join([root, target, options, *tags, "-", kind, source, more])
