"""What the kernel has logged about a device, as evidence for errors.

The last records are kept as they come, so that they are at hand when a wait has to
explain itself. Only what the kernel itself wrote counts: any process with /dev/kmsg
can write to it, but not under the kernel's name.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from agent.linux.kmsg import KernelRecord, Kmsg, KmsgSource, parse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agent.core.roots import Roots

log = logging.getLogger(__name__)

KEPT = 2000
"""Records that are kept."""

SHOWN = 10
"""Lines that an error gets, the newest."""

LINE_LIMIT = 200

_BATCH = 256
# More than the kernel's own buffer can hold (log_buf_len is at most 1 MiB by default).
_ALL = 65_536
_KERNEL = 0

# pci_setup_device: the first that is logged of a function.
_DISCOVERY = re.compile(
    r"pci (?P<name>[0-9a-f:.]+): \[[0-9a-f]{4}:[0-9a-f]{4}\] type [0-9a-f]{2} class 0x"
)

Listener: TypeAlias = Callable[[KernelRecord], None]


class KernelLog:
    """The kernel's log since the boot, as far as it is kept.

    Without a `source` it stays empty; `problem` says then why.
    """

    def __init__(self, source: KmsgSource | None, *, problem: str = "", kept: int = KEPT) -> None:
        self._source = source
        self._records: deque[KernelRecord] = deque(maxlen=kept)
        self._listeners: list[Listener] = []
        self._reading = False
        self.problem = problem
        self.lost = 0
        """How often the kernel had overwritten records before they were read."""

    @classmethod
    def open(cls, roots: Roots) -> KernelLog:
        """The log of this kernel; an empty one where it cannot be read."""
        try:
            return cls(Kmsg(roots.dev / "kmsg"))
        except OSError as error:
            problem = f"the kernel's log cannot be read: {error}"
            log.warning("%s", problem)
            return cls(None, problem=problem)

    def start(self) -> None:
        """Take what is there, then read as records come, in the running event loop."""
        if self._source is not None:
            self._take(_ALL)
        if self._source is not None:
            asyncio.get_running_loop().add_reader(self._source.fileno(), self._take, _BATCH)
            self._reading = True

    def close(self) -> None:
        """Stop reading; what was read stays."""
        source, self._source = self._source, None
        if source is None:
            return
        if self._reading:
            asyncio.get_running_loop().remove_reader(source.fileno())
        source.close()

    @property
    def position(self) -> int:
        """The number of the newest record; a later one has a higher `sequence`."""
        self._take(_BATCH)
        return self._records[-1].sequence if self._records else -1

    @property
    def kept(self) -> tuple[KernelRecord, ...]:
        """All records that are kept, the oldest first."""
        self._take(_BATCH)
        return tuple(self._records)

    @contextlib.contextmanager
    def listening(self, listener: Listener) -> Iterator[None]:
        """Call `listener` with every record that comes while the block runs."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def records(self, *devices: str) -> tuple[KernelRecord, ...]:
        """Records that name one of the devices, since it came to its address.

        Names are those of sysfs: "0000:01:00.0", "virtio3", "nvme0n1", "1:0:0:2". With a
        PCI function's among them, what was logged before it was discovered last is left
        out: that was about another device in the same place.
        """
        self._take(_BATCH)
        wanted = _Names(devices)
        found: list[KernelRecord] = []
        for record in self._records:
            if not wanted.may_be_in(record):
                continue
            if wanted.discovered_by(record):
                found.clear()
            if wanted.are_in(record):
                found.append(record)
        return tuple(found)

    def about(self, *devices: str) -> tuple[str, ...]:
        """The newest of `records` as lines for an error: `[    3.123456] virtio3: ...`."""
        return tuple(_line(record) for record in self.records(*devices)[-SHOWN:])

    def _take(self, limit: int) -> None:
        for record in self._received(limit):
            if record.facility != _KERNEL:
                continue
            self._records.append(record)
            for listener in tuple(self._listeners):
                listener(record)

    def _received(self, limit: int) -> Iterator[KernelRecord]:
        for _ in range(limit):
            if self._source is None:
                return
            try:
                record = parse(self._source.receive())
            except BlockingIOError:
                return
            except BrokenPipeError:
                self.lost += 1
            except OSError as error:
                self._stop(error)
            else:
                if record is not None:
                    yield record

    def _stop(self, error: OSError) -> None:
        self.problem = f"the kernel's log cannot be read any more: {error}"
        log.warning("%s", self.problem)
        with contextlib.suppress(OSError):
            self.close()


class _Names:
    """Devices by name, in records."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = frozenset(name for name in names if name)
        words = "|".join(map(re.escape, self._names))
        self._pattern = re.compile(rf"(?<![\w.:-])(?:{words})(?![\w-]|[.:]\w)")

    def may_be_in(self, record: KernelRecord) -> bool:
        """False for nearly all records, at a tenth of the cost of a look with the pattern:
        every look at a device without a driver goes through the whole log."""
        text, device = record.text, record.device
        for name in self._names:  # noqa: SIM110 - a generator would cost as much as the rest
            if name in text or device.endswith(name):
                return True
        return False

    def are_in(self, record: KernelRecord) -> bool:
        if not self._names:
            return False
        # "+SUBSYSTEM:NAME"; other forms are numbers.
        named = record.device.startswith("+") and record.device.partition(":")[2] in self._names
        return named or self._pattern.search(record.text) is not None

    def discovered_by(self, record: KernelRecord) -> bool:
        match = _DISCOVERY.match(record.text)
        return match is not None and match["name"] in self._names


def names(record: KernelRecord, *devices: str) -> bool:
    """Whether a record names one of the devices, as a whole word: `virtio3` is not in
    `virtio30`."""
    return _Names(devices).are_in(record)


def _line(record: KernelRecord) -> str:
    text = "".join(char if char.isprintable() else "?" for char in str(record))
    return text if len(text) <= LINE_LIMIT else f"{text[: LINE_LIMIT - 3]}..."
