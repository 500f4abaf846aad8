"""Sections and needed libraries of ELF files."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from innkeeper.image.elf import is_elf, needed_libraries, section
from tests.fakes.elf import elf_file, program_file

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def test_a_section_is_found_by_its_whole_name() -> None:
    content = elf_file({".rodata.modinfo": b"no", ".modinfo": b"yes"})
    assert section(content, ".modinfo") == b"yes"
    assert section(content, "modinfo") is None


def test_needed_libraries_are_listed_in_order() -> None:
    assert needed_libraries(program_file("libc.so.6", "libm.so.6")) == ["libc.so.6", "libm.so.6"]
    assert needed_libraries(elf_file({".text": b""})) == []


def test_a_real_program_needs_libc() -> None:
    assert "libc.so.6" in needed_libraries(Path(sys.executable).resolve().read_bytes())


def test_what_is_no_elf_file_is_said_to_be_none() -> None:
    assert not is_elf(b"#!/bin/sh\n")
    with pytest.raises(ValueError, match="not a 64-bit little-endian ELF"):
        section(b"#!/bin/sh\n", ".text")
