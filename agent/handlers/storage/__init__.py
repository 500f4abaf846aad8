"""Storages by class: the list of classes is here, and only here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agent.handlers.storage.block import BlockStorage

if TYPE_CHECKING:
    from agent.handlers.storage.base import StorageClass

CLASSES: tuple[StorageClass[Any], ...] = (BlockStorage(),)
