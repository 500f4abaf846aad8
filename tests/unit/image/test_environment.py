"""What programs of a build get to know of the host."""

from __future__ import annotations

import pytest

from innkeeper.image.environment import fixed_environment
from innkeeper.image.model import EPOCH

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def test_language_time_and_pythons_switches_are_fixed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LC_TIME", "LANGUAGE", "PYTHONPATH", "TAR_OPTIONS", "LD_LIBRARY_PATH"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    found = fixed_environment()
    assert found["TZ"] == "UTC"
    assert found["LC_ALL"] == "C.UTF-8"
    assert found["SOURCE_DATE_EPOCH"] == str(EPOCH)
    assert "x" not in found.values()


def test_proxies_and_temporary_directories_are_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://proxy.example:3128")
    monkeypatch.setenv("TMPDIR", "/elsewhere")
    found = fixed_environment(APT_CONFIG="/a")
    assert found["https_proxy"] == "http://proxy.example:3128"
    assert found["TMPDIR"] == "/elsewhere"
    assert found["APT_CONFIG"] == "/a"


def test_programs_of_sbin_are_found_by_a_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Debian gives users no sbin, and e2fsck lies there."""
    monkeypatch.setenv("PATH", "/usr/bin")
    assert fixed_environment()["PATH"] == "/usr/bin:/usr/sbin:/sbin"
