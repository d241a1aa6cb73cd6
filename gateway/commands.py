"""Commands of the thread protocol: what is asked, and the envelope of the answer.

A command that cannot be carried out is answered, not refused: only what is no command at all gets
another status than 200. What needs a connection to stay (subscriptions) is the caller's part.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol
from uuid import UUID, uuid4

import orjson
from pydantic import TypeAdapter

from gateway.admission import create, permit, prepare
from gateway.errors import Unprocessable, refusal
from gateway.protocol import STREAM_MODES
from gateway.routing import Call
from gateway.subscription import unknown_channels
from gateway.wire.body import checked
from gateway.wire.runs import RunCreate
from persistence import threads
from persistence.errors import NothingToResume, ThreadNotFound
from persistence.lifecycle import MultitaskStrategy, ThreadStatus
from persistence.runs import Answers, RunRow
from persistence.threads import ThreadHead

_RUN = TypeAdapter(RunCreate)
_FLAG = "__event_streaming_v2"
"""Key of ``configurable`` by which the graph process knows what the run is to stream."""
_SETTLE_SECONDS = 5.0
"""So long an answer waits for the run that asked to be settled: it may be quicker."""
_LOOK_SECONDS = 0.1
_MALFORMED = "Protocol commands must include an integer id and string method."
_NO_RUN = "No active run is bound to this thread."


class CommandRefused(Exception):
    """The command is not carried out; ``code`` is the protocol's word for why."""

    def __init__(self, code: str, message: str, *, seq: int | None = None) -> None:
        """seq: how far the connection is, where the protocol tells it with this refusal."""
        super().__init__(message)
        self.code = code
        self.message = message
        self.seq = seq


class Connection(Protocol):
    """What a connection that stays can do beside the commands that need none."""

    @property
    def seq(self) -> int:
        """The latest sequence number that it has come to."""
        ...

    async def subscribe(self, command_id: int, params: Mapping[str, Any]) -> None:
        """Sends what is asked for from now on, and answers the command itself."""
        ...

    async def unsubscribe(self, subscription_id: str) -> None:
        """Ends a subscription. Raises CommandRefused."""
        ...

    async def tree(self) -> dict[str, Any] | None:
        """The agents of the latest run; None before there was one."""
        ...


def malformed(command: Any) -> dict[str, Any] | None:
    """The answer to what is no command; None for one."""
    named = command if isinstance(command, dict) else {}
    command_id = named.get("id")
    is_known = isinstance(command_id, int) and not isinstance(command_id, bool)
    if is_known and isinstance(named.get("method"), str):
        return None
    # What is no number is said again only where whoever sent it could still know it by that.
    shown = command_id if is_known or isinstance(command_id, str | float) else None
    return failure(shown, CommandRefused("invalid_argument", _MALFORMED))


def success(command_id: Any, result: Mapping[str, Any], seq: int = 0) -> dict[str, Any]:
    """The envelope of an answer."""
    return {
        "type": "success",
        "id": command_id,
        "result": result,
        "meta": {"applied_through_seq": seq},
    }


def failure(command_id: Any, refused: CommandRefused) -> dict[str, Any]:
    """The envelope of a refusal."""
    meta = {} if refused.seq is None else {"meta": {"applied_through_seq": refused.seq}}
    return {
        "type": "error",
        "id": command_id,
        "error": refused.code,
        "message": refused.message,
        **meta,
    }


async def carry_out(
    call: Call, thread_id: str, command: Mapping[str, Any], connection: Connection | None = None
) -> dict[str, Any] | None:
    """Carries out a command that is well formed; returns its answer, None if that was sent.

    connection: None over plain HTTP. Raises what a request may raise that has nothing to do with
    what is asked: a database that is away.
    """
    given = command.get("params")
    params = given if isinstance(given, dict) else {}
    seq = 0 if connection is None else connection.seq
    try:
        result = await _carry_out(call, thread_id, command, params, connection)
    except CommandRefused as refused:
        return failure(command["id"], refused)
    except Exception as error:
        answer = refusal(error)
        if answer is None or (answer.status >= 500 and connection is None):
            raise
        told = CommandRefused("unknown_error", f"{answer.status}: {answer.detail}")
        return failure(command["id"], told)
    return None if result is None else success(command["id"], result, seq)


async def _carry_out(
    call: Call,
    thread_id: str,
    command: Mapping[str, Any],
    params: Mapping[str, Any],
    connection: Connection | None,
) -> dict[str, Any] | None:
    match command["method"]:
        case "run.start":
            return {"run_id": str((await _start(call, thread_id, params)).run_id)}
        case "input.respond":
            await _respond(call, thread_id, params)
            return {}
        case "agent.getTree":
            tree = None if connection is None else await connection.tree()
            if tree is None:
                raise CommandRefused("no_such_run", _NO_RUN)
            return {"tree": tree}
        case "subscription.reconnect" if connection is None:
            raise CommandRefused("no_such_run", _NO_RUN)
        case "subscription.subscribe" | "subscription.reconnect" as method:
            _check_channels(method, params, connection)
            if connection is None:  # nothing can be sent: as the reference, it is only accepted
                return {"subscription_id": str(uuid4()), "replayed_events": 0}
            await connection.subscribe(command["id"], params)
            return None
        case "subscription.unsubscribe":
            seq = None if connection is None else connection.seq
            subscription_id = params.get("subscription_id")
            if not isinstance(subscription_id, str):
                needed = "subscription.unsubscribe requires a subscription_id."
                raise CommandRefused("invalid_argument", needed, seq=seq)
            if connection is None:
                unknown = f"Unknown subscription: {subscription_id}"
                raise CommandRefused("no_such_subscription", unknown)
            await connection.unsubscribe(subscription_id)
            return {}
        case method:
            raise CommandRefused("unknown_command", f"Unknown protocol command: {method}")


def _check_channels(method: str, params: Mapping[str, Any], connection: Connection | None) -> None:
    seq = None if connection is None else connection.seq
    channels = params.get("channels")
    if not isinstance(channels, list) or not channels:
        needed = f"{method} requires a non-empty channels array."
        raise CommandRefused("invalid_argument", needed, seq=seq)
    if unknown_channels(channels):
        unknown = f"{method} received an unsupported channel."
        raise CommandRefused("invalid_argument", unknown, seq=seq)


# run.start


async def _start(call: Call, thread_id: str, params: Mapping[str, Any]) -> RunRow:
    """Starts a run; on a thread that waits for an answer its input is the answer."""
    assistant_id = params.get("assistant_id")
    if not isinstance(assistant_id, str) or not assistant_id:
        raise CommandRefused("invalid_argument", "run.start requires an assistant_id.")
    place = _thread(thread_id)
    request: dict[str, Any] = {"assistant_id": assistant_id, "input": params.get("input")}
    if await _is_answer(call, place, params):
        request |= {"input": None, "command": {"resume": params["input"]}}
    strategy = params.get("multitask_strategy", params.get("multitaskStrategy"))
    if strategy in list(MultitaskStrategy):
        request["multitask_strategy"] = strategy
    return await _create(call, place, request, params)


async def _is_answer(call: Call, thread_id: UUID, params: Mapping[str, Any]) -> bool:
    config = params.get("config")
    configurable = config.get("configurable") if isinstance(config, dict) else None
    is_fork = isinstance(configurable, dict) and "checkpoint_id" in configurable
    if params.get("input") is None or is_fork:
        return False
    try:
        thread = await threads.head(call.context.database, thread_id, allowed=call.allowed)
    except ThreadNotFound:
        return False
    return thread.status is ThreadStatus.INTERRUPTED and bool(_open_questions(thread))


# input.respond


async def _respond(call: Call, thread_id: str, params: Mapping[str, Any]) -> None:
    """Answers questions of the thread: of two who answer the same one, one is too late."""
    answers = _answers(params)
    first = next(iter(answers))
    gone = CommandRefused("no_such_interrupt", f"Unknown or already-consumed interrupt: {first}")
    try:
        place = _thread(thread_id)
        thread = await threads.head(call.context.database, place, allowed=call.allowed)
    except (Unprocessable, ThreadNotFound):
        raise gone from None
    assistant_id = orjson.loads(thread.metadata).get("assistant_id")
    if assistant_id is None:
        raise gone
    more = {name: params[name] for name in ("update", "goto") if params.get(name) is not None}
    request = {"assistant_id": assistant_id, "command": {"resume": answers, **more}}
    loop = asyncio.get_running_loop()
    given_up_at = loop.time() + _SETTLE_SECONDS
    while True:
        try:
            await _create(call, place, request, params, Answers(frozenset(answers), known=True))
        except NothingToResume as nothing:
            if not nothing.unsettled or loop.time() > given_up_at:
                raise gone from None
            await asyncio.sleep(_LOOK_SECONDS)
        else:
            return


def _answers(params: Mapping[str, Any]) -> dict[str, Any]:
    """Answers by the interrupts that they are for. One without ``response`` is null."""
    responses = params.get("responses")
    entries = responses if isinstance(responses, list) else [params]
    if not entries:
        needed = "input.respond requires at least one response."
        raise CommandRefused("invalid_argument", needed)
    answers = {}
    for entry in entries:
        if not isinstance(entry, dict):
            needed = "input.respond responses entries must be objects."
            raise CommandRefused("invalid_argument", needed)
        interrupt_id = entry.get("interrupt_id")
        if not isinstance(interrupt_id, str) or not interrupt_id:
            raise CommandRefused("invalid_argument", "input.respond requires an interrupt_id.")
        answers[interrupt_id] = entry.get("response")
    return answers


def _open_questions(thread: ThreadHead) -> list[str]:
    asked = orjson.loads(thread.interrupts or b"{}")
    return [question["id"] for task in asked.values() for question in task]


# Both


def _thread(thread_id: str) -> UUID:
    try:
        return UUID(thread_id)
    except ValueError:
        raise Unprocessable("Invalid thread ID") from None


async def _create(
    call: Call,
    thread_id: UUID,
    request: Mapping[str, Any],
    params: Mapping[str, Any],
    answers: Answers | None = None,
) -> RunRow:
    """Creates the run: an ordinary one, which streams everything the protocol has words for.

    Raises RequestError, NothingToResume.
    """
    config = params.get("config") or {}
    if isinstance(config, dict) and isinstance(config.get("configurable", {}), dict):
        config = {**config, "configurable": {**config.get("configurable", {}), _FLAG: True}}
    content = {
        "stream_mode": [mode for mode in STREAM_MODES if mode != "lifecycle"],
        "stream_subgraphs": True,
        "stream_resumable": True,
        "if_not_exists": "create",
        "config": config,
        "metadata": params.get("metadata") or {},
        **request,
    }
    body = checked(content, _RUN)
    new = await prepare(call, body, thread_id, await permit(call, body, thread_id))
    if answers is not None:
        new = replace(new, answers=answers)
    # Whoever leaves now leaves a run behind that was asked for: it is dispatched all the same.
    creation = create(call.context, new, awaited=True)
    return await asyncio.shield(call.context.background.spawn(creation))
