"""`innkeeper image`."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from innkeeper.image import command
from innkeeper.image.model import BuildOptions, Flavour, Image, ImageError

pytestmark = [pytest.mark.unit, pytest.mark.operations]


def built(directory: Path) -> Image:
    """As much of an image as the command shows."""
    for name in ("vmlinuz", "initrd.img"):
        (directory / name).write_bytes(b"x" * 2_000_000)
    (directory / "sizes.json").write_text('{"crun": 600000, "kmod": 100000}')
    return Image(
        directory=directory,
        flavour=Flavour.CLOUD,
        kernel="vmlinuz",
        initrd="initrd.img",
        root="root.ext4",
        cmdline="",
        inputs_hash="ab",
        kernel_version="6.12.9",
        size=94_900_000,
    )


def test_options_reach_the_builder_and_sizes_are_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[BuildOptions] = []

    def fake_build(options: BuildOptions, _progress: object) -> Image:
        seen.append(options)
        return built(tmp_path)

    monkeypatch.setattr(command, "build_image", fake_build)
    words = ["build", "--package", "pciutils", "--package", "lsof", "--module", "e1000"]
    words += ["--overlay", str(tmp_path), "--flavour", "generic"]
    result = CliRunner().invoke(command.app, words)
    assert result.exit_code == 0, result.output
    assert seen == [
        BuildOptions(
            flavour=Flavour.GENERIC,
            packages=("pciutils", "lsof"),
            modules=("e1000",),
            overlays=(tmp_path,),
        )
    ]
    assert "root 94.9 MB, vmlinuz 2.0 MB, initrd 2.0 MB" in result.output
    assert "crun" in result.output


def test_a_failed_build_says_why_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fake_build(_options: BuildOptions, _progress: object) -> Image:
        raise ImageError("no mirror [at all]", hint="give one: --mirror URI")

    monkeypatch.setattr(command, "build_image", fake_build)
    result = CliRunner().invoke(command.app, ["build"])
    assert str(result.exception) == "no mirror [at all]\ngive one: --mirror URI"


def test_a_check_without_an_image_tells_how_to_build_one(tmp_path: Path) -> None:
    result = CliRunner().invoke(command.app, ["check", "--out", str(tmp_path)])
    assert "build it with: innkeeper image build" in str(result.exception)


def test_help_teaches_by_example() -> None:
    result = CliRunner().invoke(command.app, ["build", "--help"])
    assert "innkeeper image build --kernel ./vendor.deb --overlay ./files" in result.output
