"""image.json, by which other programs know an image."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from innkeeper.image.model import Flavour, Image, ImageError

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def image(directory: Path) -> Image:
    return Image(
        directory=directory,
        flavour=Flavour.CLOUD,
        kernel="vmlinuz",
        initrd="initrd.img",
        root="root.ext4",
        cmdline="a=b",
        inputs_hash="ab",
        kernel_version="6.12",
        size=5,
    )


def test_an_image_reads_back_as_it_was_written(tmp_path: Path) -> None:
    image(tmp_path).save()
    assert Image.load(tmp_path) == image(tmp_path)
    assert Image.load(tmp_path).root_path == tmp_path / "root.ext4"
    assert json.loads((tmp_path / "image.json").read_text())["format"] == 1


@pytest.mark.parametrize(
    "text",
    ["{", "{}", '{"format": 2}', '{"format": 1}', '{"format": 1, "flavour": "x"}'],
)
def test_a_record_of_another_kind_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "image.json").write_text(text)
    with pytest.raises(ImageError, match="build it with: innkeeper image build"):
        Image.load(tmp_path)


def test_where_there_is_none_the_way_to_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="no image here\nbuild it with"):
        Image.load(tmp_path)
