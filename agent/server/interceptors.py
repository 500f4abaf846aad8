"""What is true of every call: counted, logged, and every error a typed status.

An AgentError becomes its status; anything else is a bug of ours and becomes
INTERNAL with a short id, under which the log holds the traceback.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Any, TypeAlias

import grpc

from agent.core.errors import AgentError, Code, Reason, exhausted
from agent.server.calls import HostLeft
from agent.server.routing import refusing
from agent.server.status import root_cause, unexpected, wire_status

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterator

    Handler: TypeAlias = grpc.RpcMethodHandler[Any, Any]
    Continuation: TypeAlias = Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]
    Context: TypeAlias = grpc.aio.ServicerContext[Any, Any]
    Behaviour: TypeAlias = Callable[[Any, Context], Awaitable[Any]]

log = logging.getLogger(__name__)


class Guard(grpc.aio.ServerInterceptor):
    """Wraps every method; see the module's docstring."""

    def __init__(self, *, most: int, endless: Collection[str]) -> None:
        """`most` calls at the same time; `endless` are the paths of those that `stop` ends."""
        self._most = most
        self._running = 0
        self._endless = frozenset(endless)
        self._waiting: set[asyncio.Task[Any]] = set()
        self._stopping = False

    def stop(self) -> None:
        """End the streams and waits, which would only delay the end; others may finish."""
        self._stopping = True
        for task in self._waiting:
            task.cancel()

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        """The method's handler, guarded; a refusing one for a method nobody knows."""
        method = handler_call_details.method
        handler = await continuation(handler_call_details)
        return self._guarded(method, refusing(_unknown(method)) if handler is None else handler)

    def _guarded(self, method: str, handler: Handler) -> Handler:
        behaviour, rebuild = _shape(handler)

        async def guarded(request: Any, context: Context) -> Any:
            started = time.monotonic()
            try:
                with self._counted(method):
                    answer = await behaviour(request, context)
            except HostLeft:
                raise asyncio.CancelledError from None
            except asyncio.CancelledError as error:
                await _refuse(method, context, _stopping() if self._stopping else error)
            except Exception as error:  # noqa: BLE001 - every error becomes a status
                await _refuse(method, context, error)
            log.debug("%s: ok", method, extra={"seconds": round(time.monotonic() - started, 6)})
            return answer

        return rebuild(guarded)

    @contextlib.contextmanager
    def _counted(self, method: str) -> Iterator[None]:
        if self._running >= self._most:
            raise exhausted(
                f"{self._most} calls are in progress, no more are possible",
                reason=Reason.LIMIT_REACHED,
                hint="end some of the streams and waits",
                limit="calls_in_flight",
                maximum=self._most,
            )
        self._running += 1
        task = _this_task()
        if method in self._endless:
            self._waiting.add(task)
        try:
            yield
        finally:
            self._running -= 1
            self._waiting.discard(task)


def _shape(handler: Handler) -> tuple[Behaviour, Callable[[Any], Handler]]:
    """What a handler does, and how to make one of the same kind.

    Routing makes them of coroutines over bytes, so there is nothing else to keep.
    """
    made: Any = handler
    if made.unary_unary:
        return made.unary_unary, grpc.unary_unary_rpc_method_handler
    if made.unary_stream:
        return made.unary_stream, grpc.unary_stream_rpc_method_handler
    return made.stream_stream, grpc.stream_stream_rpc_method_handler


async def _refuse(method: str, context: Context, error: BaseException) -> None:
    cause = root_cause(error)
    if isinstance(cause, HostLeft) or _was_cancelled(error):
        log.debug("%s: cancelled by the host", method)
        raise asyncio.CancelledError from error
    refusal = cause if isinstance(cause, AgentError) else _bug(method, error)
    status = wire_status(refusal)
    if refusal.code is not Code.INTERNAL:
        log.info("%s: %s", method, refusal, extra={"reason": refusal.reason.value})
    await context.abort(status.code, status.message, status.trailers)


def _was_cancelled(error: BaseException) -> bool:
    """Whether the call itself was cancelled: a stray CancelledError from inside is a bug."""
    return isinstance(error, asyncio.CancelledError) and _this_task().cancelling() > 0


def _this_task() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    if task is None:
        raise RuntimeError("a call is served outside a task")
    return task


def _bug(method: str, error: BaseException) -> AgentError:
    identifier = os.urandom(4).hex()
    log.error("%s: unexpected error %s", method, identifier, exc_info=error)
    return unexpected(method, identifier)


def _stopping() -> AgentError:
    return AgentError(
        "the agent is stopping",
        code=Code.UNAVAILABLE,
        reason=Reason.AGENT_AWAY,
        hint="a new agent may take over: try again, from the offset or number you have",
    )


def _unknown(method: str) -> AgentError:
    return AgentError(
        f"this agent knows no method {method}",
        code=Code.UNIMPLEMENTED,
        reason=Reason.UNKNOWN_METHOD,
        fields={"method": method},
        hint="reflection lists the services and methods that are there",
    )
