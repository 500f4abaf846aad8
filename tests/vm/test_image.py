"""The guest image as it is built: what is in it, that it comes out the same, how it starts."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from innkeeper.image.aptconf import Source
from innkeeper.image.archive import Archive
from innkeeper.image.builder import build
from innkeeper.image.check import check_image, read_image
from innkeeper.image.checkout import Checkout
from innkeeper.image.debs import DebCache
from innkeeper.image.lock import Lock, Role
from innkeeper.image.model import BuildOptions, Image
from innkeeper.image.progress import Silent
from innkeeper.image.recipe import Recipe
from innkeeper.image.resolution import Request, Resolver
from innkeeper.shim.commands import run
from tests.fakes.mirror import write_mirror

pytestmark = [
    pytest.mark.vm,
    pytest.mark.boot,
    pytest.mark.timeout(600),
    # This folder's tests share an event loop; these here have no use for one.
    pytest.mark.filterwarnings("ignore:The test .* is marked with '@pytest.mark.asyncio'"),
]

BOOT = 90.0


@pytest.fixture(scope="module")
def built() -> Image:
    """The default image, of the sources as they are now."""
    return build(BuildOptions(), Silent())


def test_what_must_be_in_the_image_is_and_nothing_else(built: Image) -> None:
    check_image(built)
    assert built.size == built.root_path.stat().st_size
    assert built.size <= 128_000_000


_MATCHES = ("tcp", "udp", "conntrack", "multiport", "comment", "MASQUERADE", "DNAT", "LOG")
ASKED_FOR = {
    *(f"fs-{name}" for name in ("xfs", "btrfs", "erofs", "squashfs", "iso9660", "vfat")),
    *(f"fs-{name}" for name in ("overlay", "nfs", "nfs4", "cifs", "smb3", "ceph")),
    # What a mount of SMB 3 asks the crypto API for, and no module says that it depends on.
    *(f"crypto-{name}" for name in ("ccm", "gcm", "ghash", "cmac")),
    "crypto-xts",
    # Links by their kind, and what rules of nft and iptables ask for: net/netfilter/nf_tables_api.c
    # and x_tables.c.
    *(f"rtnl-link-{kind}" for kind in ("bridge", "bond", "dummy", "veth", "vlan", "vrf", "vxlan")),
    "nfnetlink-subsys-10",
    *(f"nft-expr-{name}" for name in ("ct", "limit", "log", "masq", "nat", "redir", "match")),
    *(f"nft-chain-{family}-nat" for family in (1, 2, 10)),
    *(f"nft-expr-{family}-reject" for family in (1, 2, 10)),
    *(f"{family}_{name}" for family in ("ipt", "ip6t") for name in _MATCHES),
}


def test_what_the_kernel_asks_for_by_name_is_there(built: Image) -> None:
    """request_module(): a mount loads its file system, a mapping its cipher, nobody else does."""
    path = f"/usr/lib/modules/{built.kernel_version}/modules.alias"
    listed = run(["/usr/sbin/debugfs", "-R", f"cat {path}", built.root_path], deadline=BOOT).text
    assert {
        line.split()[1] for line in listed.splitlines() if line.startswith("alias")
    } >= ASKED_FOR


def test_of_some_packages_there_is_one_program_only(built: Image) -> None:
    """As their lines in guest-image/packages say."""
    programs = {
        item.path.rpartition("/")[2]
        for item in read_image(built.root_path)
        if item.path.startswith(("usr/bin/", "usr/sbin/"))
    }
    assert {"blkid", "mkfs.xfs", "mkfs.btrfs"} <= programs
    assert {"nft", "xtables-nft-multi", "iptables-restore", "ip6tables-save"} <= programs
    assert not programs & {"mount.fuse", "lsblk", "xfs_repair", "xfs_db", "btrfs", "btrfsck"}
    assert not programs & {"xtables-legacy-multi", "iptables-apply", "ip", "bridge"}


def test_the_manifest_names_every_package_of_the_lock(built: Image) -> None:
    lock = Lock.parse((built.directory / "packages.lock").read_text(), source="packages.lock")
    manifest = json.loads((built.directory / "manifest.spdx.json").read_text())
    listed = {(item["name"], item["versionInfo"]) for item in manifest["packages"]}
    wanted = {(entry.name, entry.version) for entry in lock.of(Role.IMAGE, Role.KERNEL)}
    assert wanted <= listed
    assert {"grpcio", "protobuf", "innkeeper"} <= {name for name, _ in listed}


def test_a_second_build_finds_the_first(built: Image) -> None:
    progress = Silent()
    assert build(BuildOptions(), progress) == built
    assert progress.steps == ["packages"]


_BUILD = """
import os, sys, pathlib
from innkeeper.image.builder import build
from innkeeper.image.model import BuildOptions
from innkeeper.image.progress import Silent
os.umask(0o077)
place = pathlib.Path(sys.argv[1])
build(BuildOptions(cache=place / "cache", out=place / "out"), Silent())
"""


@pytest.mark.skipif(shutil.which("faketime") is None, reason="needs the package faketime")
def test_another_clock_umask_directory_and_language_give_the_same_bytes(
    built: Image, root: Path, tmp_path: Path
) -> None:
    """Everything is made again, from the packages and wheels of the first build."""
    kept = Checkout(root=root).cache
    for name in ("debs", "wheels", "locks"):
        if (kept / name).exists():
            shutil.copytree(kept / name, tmp_path / "cache" / name)
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    other = {"TMPDIR": str(tmp), "TZ": "Asia/Tokyo", "LC_ALL": "C", "LANG": "ja_JP.UTF-8"}
    run(
        [*_faketime(), "2031-03-04 05:06:07", sys.executable, "-c", _BUILD, tmp_path],
        deadline=500,
        env={**os.environ, **other},
    )
    again = Image.load(tmp_path / "out" / "cloud")
    assert again.inputs_hash == built.inputs_hash
    for name in sorted(path.name for path in built.directory.iterdir()):
        first, second = built.directory / name, again.directory / name
        assert _digest(first) == _digest(second), f"{name} differs"
    assert list(tmp.iterdir()) == []


def _faketime() -> list[str]:
    """Without its shared memory where it can: that goes by pid, and is not for namespaces."""
    if "--disable-shm" in run(["faketime", "--help"], deadline=10).text:
        return ["faketime", "--disable-shm"]
    if os.geteuid() != 0:
        pytest.skip("a user's build is in a PID namespace: needs faketime with --disable-shm")
    return ["faketime"]


def test_a_lock_that_the_mirror_outlived_is_resolved_anew(
    built: Image, root: Path, tmp_path: Path
) -> None:
    """Real apt, on a mirror that has a newer crun only, and an empty cache."""
    recipe = Recipe.read(root / "guest-image", built.flavour)
    request = Request(
        packages=recipe.packages,
        tools=recipe.tools,
        left_out=recipe.left_out,
        kernel=None,
    )
    old = Lock.parse((built.directory / "packages.lock").read_text(), source="packages.lock")
    old = Lock(request=request.words, entries=old.of(Role.IMAGE, Role.TOOL))
    debs = DebCache(directory=Checkout(root=root).cache / "debs")
    write_mirror(tmp_path / "mirror", old.entries, debs, newer={"crun": "9:1"})
    progress = Silent()
    resolver = Resolver(
        cache=DebCache(directory=tmp_path / "debs"),
        resolved=tmp_path / "locks",
        open_archive=lambda: _open(tmp_path),
        progress=progress,
    )
    fresh = resolver.from_lock(request, old)
    versions = {entry.name: entry.version for entry in fresh.entries}
    assert versions == {entry.name: entry.version for entry in old.entries} | {"crun": "9:1"}
    crun = next(entry for entry in old.entries if entry.name == "crun")
    assert progress.warnings == [f"the mirror no longer has {crun.pin}; resolving packages anew"]


@pytest.fixture(scope="module")
def console(built: Image, tmp_path_factory: pytest.TempPathFactory) -> str:
    """What a guest shows whose PID 1 is a script of an overlay.

    Its root is the second disk. The first has all that the root has, its label too.
    """
    overlay = tmp_path_factory.mktemp("overlay")
    home = overlay / "usr/lib/innkeeper"
    (home / "site-packages").mkdir(parents=True)
    (home / "site-packages/typing_extensions.py").write_text("print('the overlay is imported')\n")
    (home / "init").write_text(_INIT)
    (home / "init").chmod(0o755)
    out = tmp_path_factory.mktemp("out")
    made = build(BuildOptions(overlays=(overlay,), out=out), Silent())
    decoy = _disk(built.root_path, "decoy", "05")
    right = _disk(made.root_path, "innkeeper-root", "06")
    return _boot(made, *decoy, *right)


_INIT = """#!/usr/bin/busybox sh
busybox mount -t proc proc /proc
echo "root: $(busybox grep ' / ' /proc/mounts)"
/usr/bin/python3 -IS /usr/lib/innkeeper/run typing_extensions
busybox poweroff -f
"""


def test_the_disk_with_our_serial_is_root_whatever_others_call_themselves(console: str) -> None:
    """A workload's disk may carry the root's label."""
    assert "root: /dev/vdb / ext4 ro" in console


def test_what_an_overlay_replaces_is_compiled_anew(console: str) -> None:
    """The guest never compares byte code with its source, so old byte code would win."""
    assert "the overlay is imported" in console


def test_without_a_root_disk_the_guest_says_so_and_powers_off(built: Image) -> None:
    console = _boot(built)
    assert "no disk with serial or label innkeeper-root within 10 s" in console


def _boot(image: Image, *devices: str) -> str:
    """What the console shows until the guest is off."""
    command: list[str | Path] = [
        *("qemu-system-x86_64", "-machine", "q35", "-accel", "tcg", "-m", "256"),
        *("-nodefaults", "-no-user-config", "-nographic", "-no-reboot", "-serial", "stdio"),
        *("-kernel", image.kernel_path, "-initrd", image.initrd_path),
        *("-append", "console=ttyS0 quiet panic=-1", *devices),
    ]
    return run(command, deadline=BOOT).text


def _disk(file: Path, serial: str, slot: str) -> list[str]:
    drive = f"if=none,id=d{slot},format=raw,readonly=on,file={file}"
    device = f"virtio-blk-pci,drive=d{slot},serial={serial},addr={slot}"
    return ["-drive", drive, "-device", device]


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _open(place: Path) -> Archive:
    source = Source(uri=f"file:{place}/mirror", suite="trixie", trusted=True)
    archive = Archive.of_sources(place / "apt", [source])
    archive.update()
    return archive
