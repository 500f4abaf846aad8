"""ruff, the formatter and mypy are content with the whole source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.style, pytest.mark.operations]


def _passes(root: Path, *command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def test_ruff_finds_nothing(root: Path) -> None:
    _passes(root, "ruff", "check", ".")


def test_ruff_would_format_nothing(root: Path) -> None:
    _passes(root, "ruff", "format", "--check", ".")


@pytest.mark.timeout(600)
def test_mypy_is_strict_and_content(root: Path) -> None:
    _passes(root, "mypy", "agent", "protocol", "tools", "tests")
