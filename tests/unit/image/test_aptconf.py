"""From the host's apt to one for Debian 13."""

from __future__ import annotations

from pathlib import Path

import pytest

from innkeeper.image.aptconf import (
    Source,
    apt_conf,
    debian_sources,
    parse_targets,
    signing_keys,
)
from innkeeper.image.model import ImageError

pytestmark = [pytest.mark.unit, pytest.mark.boot]

FILE = "/etc/apt/sources.list.d/debian.sources"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"


def targets(*lines: str) -> str:
    return "\n".join(lines) + "\n"


def test_a_debian_12_host_gives_debian_13_from_its_own_mirrors() -> None:
    """What apt 2.6 prints where it has no lists: the field Origin stays unexpanded."""
    text = targets(
        f"http://mirror.example/debian/|bookworm|main|$(ORIGIN)|{FILE}:1",
        f"http://mirror.example/debian/|bookworm-updates|main|$(ORIGIN)|{FILE}:1",
        f"http://mirror.example/security/|bookworm-security|main|$(ORIGIN)|{FILE}:2",
    )
    sources = debian_sources(parse_targets(text), codename="bookworm", keys_of={FILE: (KEYRING,)})
    options = f"deb [arch=amd64 signed-by={KEYRING}]"
    assert [source.format() for source in sources] == [
        f"{options} http://mirror.example/debian/ trixie main",
        f"{options} http://mirror.example/debian/ trixie-updates main",
        f"{options} http://mirror.example/security/ trixie-security main",
    ]


def test_other_peoples_archives_are_not_debian() -> None:
    text = targets(
        "https://mirror.example/debian/|bookworm|main|Debian|/a:1",
        # Same suite and component, another origin; another component; another suite.
        "https://vendor.example/apt/|bookworm|main|Vendor|/b:1",
        "https://docker.example/debian/|bookworm|stable|Docker|/c:1",
        "https://node.example/|nodistro|main|. nodistro|/d:1",
        "https://pg.example/|bookworm-pgdg|main|apt.postgresql.org|/e:1",
        "https://mirror.example/debian/|bookworm-backports|main|Debian Backports|/a:1",
    )
    sources = debian_sources(parse_targets(text), codename="bookworm", keys_of={})
    assert sources == [Source(uri="https://mirror.example/debian/", suite="trixie")]


def test_sources_that_say_stable_count() -> None:
    text = targets("http://m.example/|stable|main|Debian|/a:1")
    assert debian_sources(parse_targets(text), codename="trixie", keys_of={})[0].suite == "trixie"


def test_a_host_without_debian_is_told_what_to_do() -> None:
    text = targets("http://u.example/ubuntu/|noble|main|Ubuntu|/a:1")
    with pytest.raises(ImageError, match="--mirror URI"):
        debian_sources(parse_targets(text), codename="noble", keys_of={})


@pytest.mark.parametrize(
    "text",
    [
        "Types: deb\nURIs: http://m/\nSigned-By: /k/a.gpg\n",
        "deb [arch=amd64 signed-by=/k/a.gpg] http://m/ bookworm main\n",
    ],
)
def test_keys_are_found_in_both_formats_and_debians_are_added(text: str) -> None:
    assert signing_keys(text, own=(KEYRING,)) == ("/k/a.gpg", KEYRING)


def test_without_signed_by_apts_trusted_keys_are_meant() -> None:
    assert signing_keys("deb http://m/ bookworm main\n", own=(KEYRING,)) == ()


def test_proxies_and_credentials_stay_hooks_and_preferences_do_not(tmp_path: Path) -> None:
    dump = (
        'Acquire::http::Proxy "http://proxy.example:3128";\n'
        'Acquire::Check-Valid-Until "false";\n'
        'Acquire::IndexTargets::deb::Packages "";\n'
        'Acquire::Languages:: "de";\n'
        'APT::Update::Post-Invoke:: "rm -f /var/cache/apt/*.bin";\n'
        'DPkg::Pre-Install-Pkgs:: "/usr/sbin/dpkg-preconfigure";\n'
        'Dir::Etc::trustedparts "trusted.gpg.d";\n'
        'Dir::Etc::netrc "auth.conf";\n'
        'Dir::State::status "/var/lib/dpkg/status";\n'
    )
    lines = apt_conf(dump, state=tmp_path).splitlines()
    assert 'Acquire::http::Proxy "http://proxy.example:3128";' in lines
    assert 'Acquire::Check-Valid-Until "false";' in lines
    assert 'Dir::Etc::trustedparts "trusted.gpg.d";' in lines
    assert 'Dir::Etc::netrc "auth.conf";' in lines
    assert f'Dir::State::status "{tmp_path}/status";' in lines
    assert 'Dir::Etc::preferences "/dev/null";' in lines
    dropped = ("Post-Invoke", "DPkg", "IndexTargets", '"de"', "/var/lib/dpkg")
    assert not [line for line in lines if any(word in line for word in dropped)]
