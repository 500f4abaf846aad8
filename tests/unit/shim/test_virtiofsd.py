"""Which virtiofsd there is, and how each is told what to serve: by their own `--help`."""

from __future__ import annotations

from pathlib import Path

import pytest

from innkeeper.shim import virtiofsd
from innkeeper.shim.errors import Reason, ShimError
from innkeeper.shim.virtiofsd import Virtiofsd

pytestmark = [pytest.mark.unit, pytest.mark.storage]

# Lines of what they say: QEMU 7.2's, and of the one in Rust 1.13 and 1.7.
OF_QEMU = "    -o source=PATH             shared directory tree"
NEW = "      --shared-dir <SHARED_DIR>\n      --readonly"
OLD = "      --shared-dir <SHARED_DIR>"


def program(path: Path, says: str) -> Path:
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    path.chmod(0o755)
    return path


def looked_at(tmp_path: Path, says: str) -> Virtiofsd:
    return virtiofsd.look_at(program(tmp_path / "virtiofsd", says))


def argv(server: Virtiofsd, *, read_only: bool = False, as_root: bool = True) -> list[str]:
    made = server.argv(Path("/srv/a,b"), 7, read_only=read_only, as_root=as_root)
    return [word.replace(str(server.program), "PROGRAM") for word in made]


def test_the_one_of_qemu_takes_mount_options(tmp_path: Path) -> None:
    """lib/fuse_opt: a comma or backslash in a value is escaped by a backslash."""
    server = looked_at(tmp_path, OF_QEMU)
    assert argv(server) == [
        *("PROGRAM", "--fd=7", "-f", "-o"),
        "source=/srv/a\\,b,sandbox=namespace,xattr,log_level=warn",
    ]


def test_the_one_in_rust_takes_words(tmp_path: Path) -> None:
    server = looked_at(tmp_path, NEW)
    words = argv(server)
    assert words[:4] == ["PROGRAM", "--fd=7", "--shared-dir=/srv/a,b", "--sandbox=namespace"]
    assert "--readonly" not in words
    assert "--readonly" in argv(server, read_only=True)


@pytest.mark.parametrize("says", [OF_QEMU, OLD])
def test_without_an_option_for_it_the_directory_is_mounted_read_only(
    tmp_path: Path, says: str
) -> None:
    """mount(8): a bind mount becomes read-only by a second step; namespaces(7): the mount is
    the program's alone."""
    words = argv(looked_at(tmp_path, says), read_only=True)
    assert words[:4] == ["unshare", "--mount", "--propagation", "private"]
    script = words[words.index("-c") + 1]
    assert "remount,bind,ro" in script
    assert words[words.index("-c") + 2 :][:3] == ["sh", "/srv/a,b", "PROGRAM"]
    assert "--readonly" not in words


def test_an_ordinary_user_is_root_in_a_namespace(tmp_path: Path) -> None:
    """user_namespaces(7). The one in Rust makes its own."""
    user = ["unshare", "--user", "--map-root-user", "--"]
    assert argv(looked_at(tmp_path, OF_QEMU), as_root=False)[:5] == [*user, "PROGRAM"]
    assert argv(looked_at(tmp_path, NEW), as_root=False)[0] == "PROGRAM"


def test_what_is_no_virtiofsd_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ShimError, match="says nothing of sharing") as caught:
        looked_at(tmp_path, "usage: true")
    assert caught.value.reason is Reason.HOST_LACKS


def test_the_package_in_rust_comes_before_qemus_own(tmp_path: Path) -> None:
    rust, qemu = tmp_path / "rust", tmp_path / "qemu"
    environ = {"PATH": str(tmp_path / "bin")}
    with pytest.raises(ShimError, match="not installed") as caught:
        virtiofsd.find(environ, (rust, qemu))
    assert "apt install virtiofsd" in caught.value.hint
    program(qemu, OF_QEMU)
    assert virtiofsd.find(environ, (rust, qemu)) == qemu
    program(rust, NEW)
    assert virtiofsd.find(environ, (rust, qemu)) == rust


def test_the_environment_names_another(tmp_path: Path) -> None:
    own = program(tmp_path / "mine", NEW)
    assert virtiofsd.find({virtiofsd.VARIABLE: str(own)}) == own
    with pytest.raises(ShimError, match="no such program") as caught:
        virtiofsd.find({virtiofsd.VARIABLE: "/nowhere"})
    assert virtiofsd.VARIABLE in caught.value.hint
