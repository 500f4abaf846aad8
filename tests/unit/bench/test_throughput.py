"""Rates of streams: bytes are counted from the first on, and the pump does what it is told."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from bench import pump
from bench.meter import Meter
from bench.rawvm import RawPort
from bench.throughput import Rates, Repeated, throughput_samples
from innkeeper.shim.transport.stream import SocketStream

pytestmark = [pytest.mark.unit, pytest.mark.containers]


async def test_what_comes_first_only_starts_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter((10.0, 10.5, 12.0))
    monkeypatch.setattr("bench.meter.time.perf_counter", lambda: next(times))
    meter = Meter()
    for size in (700, 100, 300):
        await meter.write(bytes(size))
    assert meter.rate(1100) == 200


@pytest.mark.parametrize("pieces", [(), (8,), (4, 4, 4)], ids=["none", "at once", "too many"])
async def test_what_no_rate_can_be_told_of(pieces: tuple[int, ...]) -> None:
    meter = Meter()
    for size in pieces:
        await meter.write(bytes(size))
    with pytest.raises(RuntimeError, match="where 8 were to come"):
        meter.rate(8)


async def test_a_source_has_so_many_bytes_and_an_end() -> None:
    source = Repeated(byte=b"x", size=5)
    assert [await source.read(3) for _ in range(3)] == [b"xxx", b"xx", b""]
    assert source.began


def test_ratios_are_of_medians_and_names_say_the_transport() -> None:
    ours = Rates(out=[40e6, 50e6, 10e6], into=[10e6])
    port = Rates(out=[80e6], into=[40e6])
    told: dict[str, list[float]] = {}
    for sample in throughput_samples("vhost-user-vsock", ours, port):
        told.setdefault(sample.name, []).append(sample.value)
    assert told == {
        "stdout_mb_s_vhost_user_vsock": [40, 50, 10],
        "cat_out_mb_s_vhost_user_vsock": [80],
        "stdout_to_cat_vhost_user_vsock": [0.5],
        "stdin_mb_s_vhost_user_vsock": [10],
        "cat_in_mb_s_vhost_user_vsock": [40],
        "stdin_to_cat_vhost_user_vsock": [0.25],
    }


async def test_the_pump_and_the_host_understand_each_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both ways in any order on one connection, with a real dd at its end."""
    busybox = tmp_path / "busybox"
    busybox.write_text('#!/bin/sh\nexec "$@" 2>/dev/null\n')
    busybox.chmod(0o755)
    monkeypatch.setattr(pump, "_BUSYBOX", str(busybox))
    here, there = socket.socketpair()
    with there:
        serving = asyncio.create_task(asyncio.to_thread(pump.serve, there.fileno()))
        stream = SocketStream(here)
        port = RawPort(stream)
        for way in (port.out, port.into, port.into, port.out):
            assert await way(8) > 0
        stream.close()
        await serving


async def test_a_guest_that_says_something_else_is_an_error() -> None:
    here, there = socket.socketpair()
    with there:
        there.send(b"Kernel panic - not syncing\n")
        stream = SocketStream(here)
        with pytest.raises(RuntimeError, match="Kernel panic"):
            await RawPort(stream).into(1)
        stream.close()


def test_pieces_are_no_larger_than_what_devices_take() -> None:
    """vhost-device-vsock 0.3 loses what is larger, without a word (agent/linux/vsock.py)."""
    assert pump.PIECE <= 32 << 10
