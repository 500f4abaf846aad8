"""What is mounted, as people read it."""

from __future__ import annotations

import pytest

from innkeeper.cli import storages
from innkeeper.v1 import storages_pb2 as pb

pytestmark = [pytest.mark.unit, pytest.mark.storage]

CONFIG = pb.StorageDirectory(storage_id="src", path="config")
UP = pb.StorageDirectory(storage_id="up")


@pytest.mark.parametrize(
    ("storage", "source"),
    [
        (pb.Storage(block=pb.BlockSource(device_id="data")), "/dev/x (data)"),
        (pb.Storage(bind=pb.BindSource(path="/etc")), "bind /etc"),
        (pb.Storage(bind=pb.BindSource(directory=CONFIG)), "bind src:config"),
        (pb.Storage(watched=pb.WatchedSource(directory=CONFIG)), "watch src:config"),
        (pb.Storage(local=pb.LocalSource()), "local"),
        (pb.Storage(overlay=pb.OverlaySource(lower=[CONFIG])), "src:config"),
        (
            pb.Storage(overlay=pb.OverlaySource(lower=[CONFIG], upper=UP)),
            "up,src:config",
        ),
        (pb.Storage(tmpfs=pb.TmpfsSource()), "/dev/x"),
    ],
)
def test_a_list_says_what_was_asked_for(storage: pb.Storage, source: str) -> None:
    assert storages.row(pb.AttachedStorage(storage=storage, source="/dev/x"))[2] == source


def test_a_file_system_that_is_its_own_source_is_named_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    attached = pb.AttachedStorage(
        storage=pb.Storage(id="t"), mount_point="/m", fs_type="tmpfs", source="tmpfs"
    )
    storages.say_attached(attached, as_json=False)
    assert capsys.readouterr().out == "t: mounted at /m (tmpfs)\n"
