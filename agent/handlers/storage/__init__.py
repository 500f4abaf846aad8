"""Storages by class: the list of classes is here, and only here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.handlers.storage.bind import BindStorage
from agent.handlers.storage.block import BlockStorage
from agent.handlers.storage.ceph import CephStorage
from agent.handlers.storage.cifs import CifsStorage
from agent.handlers.storage.hugetlb import HugetlbStorage
from agent.handlers.storage.local import LocalStorage
from agent.handlers.storage.nfs import NfsStorage
from agent.handlers.storage.ninep import NinePStorage
from agent.handlers.storage.overlay import OverlayStorage
from agent.handlers.storage.pmem import PmemStorage
from agent.handlers.storage.tmpfs import TmpfsStorage
from agent.handlers.storage.virtiofs import VirtiofsStorage
from agent.handlers.storage.watched import WatchedStorage

if TYPE_CHECKING:
    from agent.handlers.storage.base import StorageClass

CLASSES: tuple[StorageClass[Any], ...] = (
    BindStorage(),
    BlockStorage(),
    CephStorage(),
    CifsStorage(),
    HugetlbStorage(),
    LocalStorage(),
    NfsStorage(),
    NinePStorage(),
    OverlayStorage(),
    PmemStorage(),
    TmpfsStorage(),
    VirtiofsStorage(),
    WatchedStorage(),
)
