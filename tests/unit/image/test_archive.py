"""What apt prints."""

from __future__ import annotations

import pytest

from innkeeper.image.archive import Deb, parse_simulation, parse_stanzas

pytestmark = [pytest.mark.unit, pytest.mark.boot]


def test_a_simulated_installation_lists_what_would_come() -> None:
    """Lines as apt 2.6 and 3.0 print them; brackets hold what would be half installed."""
    text = (
        "Reading package lists...\n"
        "Inst gcc-14-base (14.2.0-19 Debian:13.8/stable [amd64])\n"
        "Inst libgcc-s1 (14.2.0-19 Debian:13.8/stable [amd64]) []\n"
        "Inst libcap2 (1:2.75-10+b3 Debian:13.8/stable, Debian-Security:13/stable [amd64])\n"
        "Conf libcap2 (1:2.75-10+b3 Debian:13.8/stable [amd64])\n"
    )
    assert parse_simulation(text) == [
        ("gcc-14-base", "14.2.0-19"),
        ("libgcc-s1", "14.2.0-19"),
        ("libcap2", "1:2.75-10+b3"),
    ]


STANZA = """\
Package: crun
Version: 1.21-1
Architecture: amd64
Description: runtime
 Package: not a field
SHA256: {sha}
"""


def test_a_version_in_two_sources_counts_once() -> None:
    text = "\n".join(STANZA.format(sha=sha * 64) for sha in "ab")
    assert parse_stanzas(text) == [
        Deb(name="crun", version="1.21-1", architecture="amd64", sha256="a" * 64)
    ]


def test_what_the_archive_does_not_have_is_no_stanza() -> None:
    assert parse_stanzas("N: Unable to locate package nosuch\n") == []
