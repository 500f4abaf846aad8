"""One Network.ApplyInterfaces: several interfaces as one, all or nothing.

    make what is not there, what is below before what is on top
    names, as one permutation (`naming.py`)
    each interface, those below and masters first (`settling.py`)
    alternative names; what was lost on the way (`regaining.py`)
    look: the answer is what is there now (`answering.py`)

Whatever ends it before that, a refusal, a cancellation or a deadline, everything is made
what it was (`memory.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.core.errors import invalid
from agent.core.undo import UndoStack
from agent.handlers.network import making, planning
from agent.handlers.network.answering import Account, answer
from agent.handlers.network.hands import Hands
from agent.handlers.network.listing import look
from agent.handlers.network.memory import Memory
from agent.handlers.network.regaining import regain
from agent.handlers.network.request import Request, before
from agent.handlers.network.request_names import RequestNames
from agent.handlers.network.settling import Settler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.core.deadlines import Deadline
    from agent.core.network import InterfaceState, InterfaceWish
    from agent.core.tree import SysfsTree
    from agent.handlers.network.finding import Found
    from agent.handlers.network.memory import Ways


async def apply(
    found: Sequence[Found], *, ways: Ways, tree: SysfsTree, deadline: Deadline
) -> tuple[InterfaceState, ...]:
    """The states in the order of the wishes. Raises NetlinkRefusal besides AgentError."""
    world = await look(ways.netlink, deadline)
    ways.records.keep(world.links)
    request = Request(found, tree=tree, world=world)
    return await _Application(request, ways=ways, deadline=deadline).run()


class _Application:
    """One request, once."""

    def __init__(self, request: Request, *, ways: Ways, deadline: Deadline) -> None:
        self._request = request
        self._ways = ways
        self._deadline = deadline
        self._memory = Memory(world=request.world, spare=ways.records.given())
        self._hands = Hands(ways.netlink, deadline, self._remember)
        self._names = RequestNames(request, hands=self._hands, records=ways.records)
        self._accounts: dict[int, Account] = {}

    async def run(self) -> tuple[InterfaceState, ...]:
        async with UndoStack("apply interfaces") as undo:
            undo.push("give the interfaces back what they had", self._restore)
            await self._work()
            await self._look()
            states = await answer(self._request, self._accounts, self._ways, self._deadline)
            self._names.note_asked()
            undo.commit()
        return states

    async def _work(self) -> None:
        request = self._request
        request.check_there()
        await self._make_all()
        request.check_once()
        for taker, words in (await self._names.give()).items():
            if taker in self._accounts:
                self._accounts[taker].notes.append(words)
        await self._look()
        settler = Settler(ways=self._ways, hands=self._hands, memory=self._memory)
        for index in planning.in_order(request.indexes, request.order()):
            wish = request.wish_of(index)
            done = await settler.settle(index, wish, request.master(wish))
            self._accounts[index].before = done
        await self._names.give_alternative()
        await self._regain()

    async def _look(self) -> None:
        if self._hands.changed:
            await self._request.look(self._ways.netlink, self._deadline)

    async def _remember(self, indexes: Sequence[int]) -> None:
        """What the request is about, and what changes along with that, masters first."""
        request, world = self._request, self._memory.world
        concerned = [index for index in (*request.indexes, *indexes) if index in world.links]
        for wish in request.wishes:
            if wish.master and (link := world.by_name(wish.master)) is not None:
                concerned.append(link.index)
        around = planning.around(concerned, list(world.links.values()))
        above = {link.index: before(link) for link in world.links.values()}
        ordered = planning.in_order(around, above)
        await self._memory.hold(self._ways.netlink, ordered, self._deadline)

    async def _restore(self) -> None:
        if self._hands.changed:
            await self._memory.restore(self._ways)

    async def _make_all(self) -> None:
        """What is on top of another that is made here waits for that."""
        request = self._request
        pending = [place for place, wish in enumerate(request.wishes) if wish.making is not None]
        while pending:
            names = {_own_name(request.wishes[place]) for place in pending}
            ready = [p for p in pending if _parent(request.wishes[p]) not in names]
            if not ready:
                raise invalid("interfaces are on top of each other in a circle", field="parent")
            for place in ready:
                await self._make(place)
                pending.remove(place)
        for place, (index, wish) in enumerate(request):
            if not index:
                name = wish.current_name or wish.name
                request.indexes[place] = index = request.resolved(name, wish)
            if index not in self._accounts:
                self._accounts[index] = self._account(index)

    async def _make(self, place: int) -> None:
        """Made, or made otherwise, or refused: what this wish says of how it is made."""
        request, wish = self._request, self._request.wishes[place]
        assert wish.making is not None
        parent = request.resolved(wish.making.parent, wish) if wish.making.parent else 0
        maker = making.Maker(world=request.world, hands=self._hands, memory=self._memory)
        if index := request.indexes[place]:
            link = request.world.links[index]
            self._accounts[index] = self._account(index)
            self._accounts[index].making = await maker.adjust(link, wish.making, parent=parent)
            return
        request.aliases |= await maker.make(_own_name(wish), wish.making, parent=parent)
        await self._look()
        request.indexes[place] = index = request.resolved(_own_name(wish), wish)
        self._accounts[index] = self._account(index)
        self._accounts[index].made = True

    def _account(self, index: int) -> Account:
        world = self._request.world
        return Account(link=world.links[index], addresses=world.addresses_of(index))

    async def _regain(self) -> None:
        if not self._hands.changed:
            return
        for index, holding in self._memory.holdings.items():
            asked = index in self._request.indexes
            lost = await regain(holding, self._hands, asked=asked)
            if asked:
                self._accounts[index].notes.extend(lost)


def _own_name(wish: InterfaceWish) -> str:
    """Under which an interface is made."""
    return wish.name or wish.current_name


def _parent(wish: InterfaceWish) -> str:
    return wish.making.parent if wish.making is not None else ""
