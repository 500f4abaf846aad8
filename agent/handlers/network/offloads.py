"""Offloads by any of their names: those of `ethtool -k` and `-K`, or the kernel's own.

A name of ethtool may stand for several features of the kernel ("tso"); it means those of
them that can be changed. Facts: the table `off_flag_def` of ethtool's common.c, and
Documentation/networking/netdev-features.rst.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from agent.core.errors import Reason, invalid, wrong_state

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.core.rtnl.ethtool import Features

# By the name of -K, the name of -k, and a pattern of the kernel's names.
_NAMED = (
    ("rx", "rx-checksumming", "rx-checksum"),
    ("tx", "tx-checksumming", "tx-checksum-*"),
    ("sg", "scatter-gather", "tx-scatter-gather*"),
    ("tso", "tcp-segmentation-offload", "tx-tcp*-segmentation"),
    ("ufo", "udp-fragmentation-offload", "tx-udp-fragmentation"),
    ("gso", "generic-segmentation-offload", "tx-generic-segmentation"),
    ("gro", "generic-receive-offload", "rx-gro"),
    ("lro", "large-receive-offload", "rx-lro"),
    ("rxvlan", "rx-vlan-offload", "rx-vlan-hw-parse"),
    ("txvlan", "tx-vlan-offload", "tx-vlan-hw-insert"),
    ("ntuple", "ntuple-filters", "rx-ntuple-filter"),
    ("rxhash", "receive-hashing", "rx-hashing"),
)
_PATTERNS = {name: pattern for short, long, pattern in _NAMED for name in (short, long)}


def features_to_set(
    wishes: Mapping[str, bool], features: Features, interface: str
) -> dict[str, bool]:
    """The features to set, and to what: those that are wanted otherwise so far.

    A single feature goes before a name for several. Raises BAD_FIELD for a name that
    nobody knows, OFFLOAD_REFUSED for one that is fixed otherwise.
    """
    wanted: dict[str, bool] = {}
    for name in sorted(wishes, key=lambda name: name not in _PATTERNS):
        meant = _meant(name, features, interface)
        _check(name, meant, on=wishes[name], features=features, interface=interface)
        wanted |= dict.fromkeys(meant, wishes[name])
    return {
        name: on
        for name, on in wanted.items()
        if name in features.changeable and (name in features.wanted) != on
    }


def check_fulfilled(wishes: Mapping[str, bool], features: Features, interface: str) -> None:
    """Raises OFFLOAD_REFUSED where the kernel took a wish and keeps all that it means off."""
    off = [
        name
        for name, on in wishes.items()
        if on and not features.active.intersection(_meant(name, features, interface))
    ]
    if off:
        raise wrong_state(
            f"interface {interface}: the kernel keeps {', '.join(off)} off",
            reason=Reason.OFFLOAD_REFUSED,
            hint="it needs other offloads that are off: tso needs sg and tx, lro needs rx",
            interface=interface,
            offloads=" ".join(off),
        )


def _meant(name: str, features: Features, interface: str) -> list[str]:
    """The kernel's features that a name stands for."""
    known = sorted(features.active | features.wanted | features.changeable | features.fixed)
    pattern = _PATTERNS.get(name)
    if pattern is not None:
        return [each for each in known if fnmatchcase(each, pattern)]
    if name not in known:
        raise invalid(
            f"interface {interface}: the kernel has no offload {name!r}",
            field="offloads",
            hint="names are those of `ethtool -k` or `ethtool -K`: tso, rx-checksumming, ...",
        )
    return [name]


def _check(name: str, meant: list[str], *, on: bool, features: Features, interface: str) -> None:
    """That something can be done about it, where something has to be done."""
    is_so = bool(features.active.intersection(meant)) == on
    if is_so or features.changeable.intersection(meant):
        return
    raise wrong_state(
        f"interface {interface}: its driver has {name} fixed {'off' if on else 'on'}",
        reason=Reason.OFFLOAD_REFUSED,
        interface=interface,
        offloads=name,
    )
