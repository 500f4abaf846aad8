"""What is known of the interfaces that a container was given: saved before they move."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from agent.handlers.network import holding_data

if TYPE_CHECKING:
    from agent.core.network import Link
    from agent.handlers.network.holding import Holding


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """One interface in a container's network namespace, or on its way there or back.

    `holding` is what it had in the sandbox, `name` what it is called there. `index` is its
    index there, 0 until it is known; `home_name` the name under which it comes back, empty
    until it does. One that `stays` comes back only where the container was never made.
    """

    holding: Holding
    name: str
    stays: bool = False
    index: int = 0
    home_name: str = ""
    driver: str = ""
    pci_path: str = ""
    pci_bdf: str = ""

    def is_there(self, link: Link) -> bool:
        """Whether a link of the container's namespace is this one.

        Before its index is known nothing there has changed it; afterwards a container may
        have renamed it, or put another in its place.
        """
        if not self.index:
            return alike(link, self.holding.link) and link.mac == self.holding.link.mac
        return link.index == self.index and alike(link, self.holding.link)

    def is_home(self, link: Link) -> bool:
        """Whether a link of the sandbox is this one: it never left, or the agent died while
        it came back, or the kernel has sent it back. A card that was plugged in meanwhile
        is another one: indexes are not used again."""
        known = link.index in (self.index, self.holding.link.index)
        named = bool(self.home_name) and link.name == self.home_name
        return (known or named) and alike(link, self.holding.link)


def alike(one: Link, other: Link) -> bool:
    """Of one kind, with one address from the hardware."""
    return one.kind == other.kind and one.permanent_mac == other.permanent_mac


@dataclass(frozen=True, slots=True, kw_only=True)
class LoanRecord:
    """All loans of a container."""

    KIND = "loans"

    container_id: str
    loans: tuple[Loan, ...]

    @property
    def pin(self) -> str:
        """The name by which PID 1 keeps the namespace: it and what is in it stay there when
        the container's last process is gone, and the agent too."""
        return f"netns/{self.container_id}"

    def to_data(self) -> dict[str, Any]:
        return {
            "container_id": self.container_id,
            "loans": [_loan_data(loan) for loan in self.loans],
        }

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Self:
        """Raises KeyError, TypeError or ValueError for data of another shape."""
        loans = tuple(
            Loan(**{**each, "holding": holding_data.from_data(each["holding"])})
            for each in data["loans"]
        )
        return cls(container_id=str(data["container_id"]), loans=loans)


def _loan_data(loan: Loan) -> dict[str, Any]:
    names = (each.name for each in dataclasses.fields(loan))
    plain = {name: getattr(loan, name) for name in names}
    return {**plain, "holding": holding_data.to_data(loan.holding)}
