"""`innkeeper devices`: what this host could give to a VM."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from innkeeper.cli import options, output
from innkeeper.cli.errors import CliError
from innkeeper.shim.candidates import BDF, CandidatesError, survey

if TYPE_CHECKING:
    from collections.abc import Iterator

    from innkeeper.shim.candidates import Candidate

_COLUMNS = ("ADDRESS", "NAME", "CLASS", "DRIVER", "GROUP", "NUMA", "CAN BE GIVEN AWAY")


def devices(
    address: Annotated[
        str, typer.Argument(metavar="ADDRESS", help="One function, with all that is known of it.")
    ] = "",
    *,
    all_: Annotated[
        bool, typer.Option("--all", help="Show bridges too, which are never given away.")
    ] = False,
    json: options.JsonOption = False,
) -> None:
    """Shows this host's PCI functions, and which a VM can have.

    A function can be given away when it is behind an IOMMU, the host does not use
    it, and no other member of its IOMMU group keeps a driver of the host. With an
    ADDRESS the answer says what is in the way and what to do, as commands of root's.

    \b
    Examples:
      innkeeper devices
      innkeeper devices 0000:3b:00.0
      innkeeper devices --all --json | jq -r '.[] | select(.can_be_given) | .address'
    """
    found = _survey()
    if address:
        found = (_pick(found, address),)
    elif not all_:
        found = tuple(candidate for candidate in found if not candidate.is_bridge)
    if json:
        output.say_json([_record(candidate) for candidate in found])
    elif address:
        output.say("\n".join(_details(found[0])))
    else:
        output.table(_COLUMNS, [_row(candidate) for candidate in found])
        output.note(_afterword(found))
    if os.geteuid() != 0:
        output.note("Devices that other users' processes have open are only known to root.")


def _survey() -> tuple[Candidate, ...]:
    try:
        return survey()
    except CandidatesError as error:
        raise CliError(error.message, hint=error.hint) from error


def _pick(found: tuple[Candidate, ...], text: str) -> Candidate:
    """An address may be without its domain, as lspci writes it."""
    address = text.lower() if text.count(":") == 2 else f"0000:{text.lower()}"
    if not BDF.fullmatch(address):
        raise typer.BadParameter(f"{text!r}: write a PCI address as in 0000:3b:00.0 or 3b:00.0")
    for candidate in found:
        if candidate.address == address:
            return candidate
    raise CliError(f"this host has no PCI function {address}", hint="see: innkeeper devices --all")


def _afterword(found: tuple[Candidate, ...]) -> str:
    if not found:
        return "This host has no PCI functions but bridges; see: innkeeper devices --all"
    return f"What to do for one: innkeeper devices {found[0].address}"


def _row(candidate: Candidate) -> tuple[str, ...]:
    return (
        candidate.address,
        candidate.name,
        candidate.kind,
        candidate.driver or "-",
        _group(candidate),
        "-" if candidate.numa_node is None else str(candidate.numa_node),
        _verdict(candidate),
    )


def _group(candidate: Candidate) -> str:
    """ "14, with 0000:01:00.1"."""
    if candidate.group is None:
        return "-"
    others = [m.address for m in candidate.members if m.address != candidate.address]
    return f"{candidate.group}, with {' '.join(others)}" if others else str(candidate.group)


def _verdict(candidate: Candidate) -> str:
    if candidate.objections:
        return f"no: {'; '.join(objection.why for objection in candidate.objections)}"
    if candidate.is_bound:
        return f"yes, {candidate.driver} has it"
    return f"yes, after {len(candidate.bind)} commands"


def _details(candidate: Candidate) -> Iterator[str]:
    yield f"{candidate.address}  {candidate.kind}: {candidate.name}"
    yield f"  PCI id: {candidate.pci_id}, class {candidate.pci_class}"
    yield f"  driver: {candidate.driver or 'none'}"
    yield f"  NUMA node: {'none' if candidate.numa_node is None else candidate.numa_node}"
    yield f"  IOMMU group: {'none' if candidate.group is None else candidate.group}"
    for member in candidate.members:
        yield f"    {member.address}  {member.kind}, driver {member.driver or 'none'}"
    yield f"  can be given away: {'yes' if candidate.can_be_given else 'no'}"
    for objection in candidate.objections:
        yield f"    {objection.why}"
        yield f"      what to do: {objection.remedy}"
    yield from _commands("bind to vfio-pci, as root", candidate.bind)
    yield from _commands("give back to the host, as root", candidate.release)


def _commands(what: str, commands: tuple[str, ...]) -> Iterator[str]:
    if commands:
        yield f"  {what}:"
        yield from (f"    {command}" for command in commands)


def _record(candidate: Candidate) -> dict[str, object]:
    return {**asdict(candidate), "can_be_given": candidate.can_be_given}
