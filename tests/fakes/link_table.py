"""A Netlink that has links to show, and changes nothing."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Any

from agent.core.deadlines import Deadline
from agent.core.netlink import HEADER, Change, NetlinkRefusal, Question
from agent.core.network import Link
from agent.core.rtnl.messages import RTM_GETLINK, Attributes, decoded, link_message


@dataclass(slots=True)
class LinkTable:
    """`links` is what there is now; a look sees what was put there before it."""

    links: list[Link] = field(default_factory=list)
    looks: int = 0

    async def change(self, *changes: Change, deadline: Deadline) -> None:
        raise NetlinkRefusal(errno.EPERM, "nothing changes here", changes[0])

    async def ask(self, question: Question, deadline: Deadline) -> list[Any]:
        if question.type != RTM_GETLINK:
            return []
        self.looks += 1
        if question.dump:
            return list(self.links)
        index, name = _subject(question)
        for link in self.links:
            if link.index == index or name in (link.name, *link.altnames):
                return [link]
        raise NetlinkRefusal(errno.ENODEV, "", question)

    def close(self) -> None:
        pass


def _subject(question: Question) -> tuple[int, str]:
    size = HEADER.size + len(question.payload)
    message = decoded(link_message, HEADER.pack(size, question.type, 0, 0, 0) + question.payload)
    return message["index"], Attributes(message).text("IFLA_ALT_IFNAME")
