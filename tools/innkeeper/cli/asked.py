"""The words of `innkeeper run`, read: what can be refused is refused here, before a VM boots."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import typer

from innkeeper.cli import (
    container_spec,
    detach,
    forward_specs,
    limits,
    netdns,
    nics,
    options,
    security,
    stopping,
    volumes,
    workload,
)
from innkeeper.cli.hardware import parse_cold
from innkeeper.cli.imageconfig import ImageConfig
from innkeeper.cli.running import CONTAINER, RunRequest
from innkeeper.shim.client import VmSpec
from innkeeper.shim.filling import oci
from innkeeper.v1 import network_pb2, types_pb2

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    Words = Mapping[str, Any]
    """By the names of the parameters."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_STORAGE = "storage:"
_LOG_SIZES = range(4096, (256 << 20) + 1)
_LOG_FILES = range(1, 17)

# Of no use in a VM that runs already, by parameter.
_OF_A_NEW_VM = (
    *("vm_memory", "vm_cpus", "image", "accel", "transport", "bridge", "switch"),
    *("second_root", "iommu", "nvdimm", "max_memory", "max_cpus", "private_memory", "share_9p"),
    *("cold", "net", "publish", "forward", "reverse", "dns", "dns_search", "add_host"),
)

_NO_IMAGE = ImageConfig()


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Where the container's root comes from; nothing: the guest image's own small one."""

    path: Path | None = None
    image: str = ""
    storage: str = ""
    config: ImageConfig = _NO_IMAGE


def request_of(words: Words, said: Collection[str]) -> RunRequest:
    """`said`: the parameters that are on the command line. Raises typer.BadParameter, and
    DiskError for an OCI layout that is none."""
    vm = words["vm"]
    _check_words(words, said)
    root = _root(words["rootfs"], with_vm=bool(vm))
    mounted = _volumes(words)
    around = _surroundings(words, mounted)
    size = (
        limits.VmSize()
        if vm
        else limits.vm_size(around.limits, words["vm_memory"], words["vm_cpus"])
    )
    spec = None if vm else options.vm_spec(_vm_spec(words, size))
    return RunRequest(
        spec=spec,
        process=_process(words, root.config, around),
        disks=tuple(options.parse_disk(text) for text in words["disk"] or ()),
        shares=mounted.shares,
        storages=mounted.storages,
        interfaces=_interfaces(words),
        dns=_dns(words),
        devices=_devices(words, with_vm=bool(vm)),
        all_devices=words["privileged"],
        rootfs=root.path,
        image=root.image,
        root_storage=root.storage,
        oci=around.to_oci(),
        shared_namespaces=around.namespaces.shared,
        log=_log(words["log_opt"] or (), detached=words["detached"]),
        detached=words["detached"],
        keep=words["keep"],
        stop=stopping.parse(words["stop_signal"], words["stop_timeout"], root.config.stop_signal),
        # A VM that ends with us can't be left.
        keys=detach.parse_keys(words["detach_keys"]) if vm or words["keep"] else b"",
        vm=vm,
        container=_container_id(words),
    )


def _check_words(words: Words, said: Collection[str]) -> None:
    """What means nothing to a VM that is new, or is not; and what contradicts itself."""
    if not words["vm"] and words["storage"]:
        raise typer.BadParameter("--storage and --device want --vm: a new VM has none yet")
    for parameter in _OF_A_NEW_VM if words["vm"] else ():
        if parameter in said:
            word = parameter.replace("_", "-")
            raise typer.BadParameter(
                f"--{word} is for a new VM, and --vm takes one that runs already"
            )
    if words["rm"] and (words["detached"] or words["keep"]):
        raise typer.BadParameter(
            "--rm: with -d or --keep nobody is there at its end to take it away;"
            " later: innkeeper rm VM CONTAINER, or innkeeper vm stop VM"
        )
    if words["publish"] and words["network"] in ("own", "none"):
        raise typer.BadParameter(
            f"-p: is a port of the guest's network, and with --network own the container has"
            f" another; write it as -L PORT:{CONTAINER}@PORT"
        )


def _devices(words: Words, *, with_vm: bool) -> tuple[options.GrantOption, ...]:
    found = tuple(options.parse_grant(text) for text in words["device"] or ())
    if not with_vm and any(each.kind == "id" for each in found):
        raise typer.BadParameter("--storage and --device want --vm: a new VM has none yet")
    return found


def _root(text: str, *, with_vm: bool) -> Root:
    if text.startswith(_STORAGE) and not options.exists(text):
        storage = text.removeprefix(_STORAGE)
        if not _ID.fullmatch(storage):
            raise typer.BadParameter(f"--rootfs {text}: {storage!r} is no storage's id")
        if not with_vm:
            raise typer.BadParameter(f"--rootfs {text}: wants --vm: a new VM has no storages yet")
        return Root(storage=storage)
    if not text:
        return Root()
    path, image = oci.split(text)
    found = options.existing_file(str(path))
    if not oci.is_layout(found):
        return Root(path=found)
    return Root(path=found, image=image, config=ImageConfig.of(oci.Layout(found, image).config()))


def _volumes(words: Words) -> volumes.Volumes:
    """With those of --share and --storage, which come first."""
    found = volumes.parse(
        *(words[name] or () for name in ("volume", "mount", "tmpfs")), with_vm=bool(words["vm"])
    )
    shares = tuple(options.parse_share(text) for text in words["share"] or ())
    storages = tuple(options.parse_mount("--storage", text) for text in words["storage"] or ())
    return replace(found, shares=(*shares, *found.shares), storages=(*storages, *found.storages))


def _surroundings(words: Words, mounted: volumes.Volumes) -> container_spec.Surroundings:
    found = container_spec.Surroundings(
        limits=limits.parse(words),
        security=security.parse(words),
        namespaces=container_spec.parse_namespaces(words, with_vm=bool(words["vm"])),
        tmpfs=mounted.tmpfs,
        hostname=words["hostname"],
        read_only=words["read_only"],
        init=words["init"],
    )
    container_spec.check(found)
    return found


def _process(
    words: Words, image: ImageConfig, around: container_spec.Surroundings
) -> workload.ProcessOptions:
    argv = image.argv(words["command"] or (), words["entrypoint"])
    terminal, detached = words["tty"], words["detached"]
    stdin = words["stdin"]
    return workload.ProcessOptions(
        argv=(container_spec.INIT, "--", *argv) if words["init"] else argv,
        environment=workload.full_environment(_environment(words, image), with_terminal=terminal),
        directory=options.parse_directory(words["workdir"]) or image.directory or "/",
        user=options.parse_user(words["user"]) or image.who,
        terminal=terminal,
        stdin=(terminal or not detached) if stdin is None else stdin,
        more=around.security.of_process(),
    )


def _environment(words: Words, image: ImageConfig) -> tuple[str, ...]:
    """The last one of a name counts."""
    given = [word for file in words["env_file"] or () for word in options.read_environment(file)]
    given += words["env"] or ()
    entries = (*image.environment, *options.parse_environment(given))
    return tuple({entry.partition("=")[0]: entry for entry in entries}.values())


def _interfaces(words: Words) -> tuple[nics.Nic, ...]:
    return tuple(nics.parse_net(text) for text in words["net"] or ())


def _vm_spec(words: Words, size: limits.VmSize) -> VmSpec:
    stays = words["keep"] or words["detached"]
    spec = VmSpec(
        name=words["name"] or _fresh(),
        memory=size.memory,
        cpus=size.cpus,
        tied=not stays,
        max_memory=options.parse_max_memory(words["max_memory"]),
        shares_9p=tuple(options.parse_9p(text) for text in words["share_9p"] or ()),
        cold=parse_cold(words["cold"] or []) + nics.cold_devices(_interfaces(words)),
        forwards=forward_specs.parse_all(words["publish"], words["forward"], words["reverse"]),
    )
    plain = (
        *("image", "accel", "transport", "bridge", "switch", "second_root", "iommu"),
        *("nvdimm", "max_cpus", "private_memory"),
    )
    return replace(spec, **{name: words[name] for name in plain})


def _container_id(words: Words) -> str:
    if not words["vm"]:
        return CONTAINER
    name: str = words["name"] or _fresh()
    if not _ID.fullmatch(name):
        raise typer.BadParameter(
            f"--name {name}: a container's id is 1 to 64 of letters, digits, _ . -"
        )
    return name


def _fresh() -> str:
    return f"run-{secrets.token_hex(4)}"


def _log(texts: Sequence[str], *, detached: bool) -> types_pb2.OutputLog | None:
    """None: no log. Nobody reads what was detached, so it has one."""
    if not texts and not detached:
        return None
    log = types_pb2.OutputLog()
    for text in texts:
        name, _, value = text.partition("=")
        match name:
            case "max-size":
                size = options.parse_size(value)
                log.max_bytes = options.check_number("--log-opt max-size", size, _LOG_SIZES)
            case "max-file":
                log.files = options.parse_number("--log-opt max-file", value, _LOG_FILES)
            case _:
                raise typer.BadParameter(f"--log-opt {text}: write max-size=SIZE or max-file=N")
    return log


def _dns(words: Words) -> netdns.Change | None:
    servers, searches = words["dns"], words["dns_search"]
    hosts = [_host(text) for text in words["add_host"] or ()]
    if not (servers or searches or hosts):
        return None
    for server in servers or ():
        _address("--dns", server, server)
    return netdns.Change(servers=servers, searches=searches, hosts=hosts or None)


def _host(text: str) -> network_pb2.HostEntry:
    match = re.fullmatch(r"([^:=\s]+)[:=](\[)?(.+?)(?(2)\])", text)
    if match is None:
        raise typer.BadParameter(f"--add-host {text}: write NAME:IP")
    return network_pb2.HostEntry(address=_address("--add-host", text, match[3]), names=[match[1]])


def _address(option: str, text: str, address: str) -> str:
    try:
        ip_address(address)
    except ValueError:
        raise typer.BadParameter(f"{option} {text}: {address!r} is no IP address") from None
    return address
