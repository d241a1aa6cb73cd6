"""Why an attempt ended, and what that means: pure decisions."""

from uuid import uuid4

import pytest

from actors.child.protocol import Frame, pack_parts
from actors.outcome import (
    Cancelled,
    Crashed,
    Ended,
    Failed,
    HandedBack,
    LeaseLost,
    Succeeded,
    TimedOut,
    settlement,
)
from actors.pool.attempt import Asked, Displaced, Draining, Revoked, TooLong, outranks, reported
from actors.pool.placement import Seats, choose, room
from persistence.lifecycle import (
    FAIL,
    INTERRUPT,
    SUCCEED,
    TIME_OUT,
    CancelAction,
    MultitaskStrategy,
)
from persistence.runs import ClaimedRun

ENDED = Ended(values=b'{"a":1}', interrupts=b'{"t":[]}', next=("ask",), result=b'{"r":1}')
STOP = Asked(CancelAction.INTERRUPT)
ROLLBACK = Asked(CancelAction.ROLLBACK)


def claimed():
    return ClaimedRun(
        run_id=uuid4(),
        thread_id=uuid4(),
        assistant_id=uuid4(),
        graph_id="agent",
        attempt=3,
        crashes=0,
        kwargs=b"{}",
        metadata={},
        multitask_strategy=MultitaskStrategy.ENQUEUE,
        temporary=False,
        resumable=False,
        credential=uuid4(),
    )


def report(end, **head):
    lengths, body = pack_parts({"values": b'{"a":1}', "interrupts": b"{}"})
    return Frame("outcome", {"end": end, "next": ["ask"], "parts": lengths, **head}, body)


@pytest.mark.parametrize(
    ("outcome", "move", "action"),
    [
        (Succeeded(ENDED), SUCCEED, None),
        (Failed("ValueError", "no", ENDED), FAIL, None),
        (TimedOut(5, ENDED), TIME_OUT, None),
        (Cancelled(CancelAction.INTERRUPT, ENDED), INTERRUPT, CancelAction.INTERRUPT),
        (Cancelled(CancelAction.ROLLBACK, ENDED), INTERRUPT, CancelAction.ROLLBACK),
    ],
)
def test_each_terminal_outcome_has_its_move_and_shows_the_token(outcome, move, action):
    run = claimed()
    result = settlement(outcome, run)
    assert (result.run_id, result.attempt) == (run.run_id, 3)
    assert (result.move, result.action) == (move, action)
    assert (result.values, result.output, result.next_nodes) == (b'{"a":1}', b'{"r":1}', True)


def test_failures_say_why_and_a_cancelled_run_leaves_that_to_its_row():
    run = claimed()
    assert settlement(Failed("KeyError", "'x'", ENDED), run).error == {
        "error": "KeyError",
        "message": "'x'",
    }
    assert "5 s" in settlement(TimedOut(5.0, ENDED), run).error["message"]
    assert settlement(Cancelled(CancelAction.INTERRUPT, ENDED), run).error is None


@pytest.mark.parametrize(
    ("end", "stop", "outcome"),
    [
        ("succeeded", None, Succeeded),
        ("failed", None, Failed),
        ("cancelled", None, Failed),
        ("succeeded", STOP, Succeeded),
        ("cancelled", STOP, Cancelled),
        ("failed", STOP, Cancelled),
        ("succeeded", ROLLBACK, Cancelled),
        ("cancelled", TooLong(1), TimedOut),
        ("failed", TooLong(1), TimedOut),
        ("succeeded", TooLong(1), Succeeded),
        ("cancelled", Draining(), HandedBack),
        ("succeeded", Draining(), Succeeded),
        ("succeeded", Revoked(), LeaseLost),
        ("failed", Revoked(), LeaseLost),
        ("nonsense", None, Crashed),
    ],
)
def test_a_report_is_read_in_the_light_of_what_was_asked(end, stop, outcome):
    assert isinstance(reported(report(end, error="E", message="m"), stop), outcome)


def test_reports_carry_their_bytes_untouched():
    ended = reported(report("succeeded"), None).ended
    assert (ended.values, ended.interrupts, ended.next) == (b'{"a":1}', b"{}", ("ask",))
    assert ended.result is None


def test_a_lost_lease_outranks_all_and_a_rollback_an_interrupt():
    everything = [STOP, ROLLBACK, TooLong(1), Draining(), Revoked()]
    assert all(outranks(Revoked(), other) for other in everything[:-1])
    assert not any(outranks(other, Revoked()) for other in everything)
    assert outranks(ROLLBACK, STOP)
    assert not outranks(STOP, ROLLBACK)
    assert outranks(STOP, Draining())
    assert not outranks(Draining(), STOP)
    assert all(outranks(stop, Displaced()) for stop in (STOP, TooLong(1)))  # it may go on for ever
    assert all(outranks(stop, None) for stop in everything)


def seats(key, load=0, limit=2, answering=True, delay=0.0):
    return Seats(key, load, limit, answering, delay)


def test_a_run_goes_to_the_least_loaded_process_that_answers():
    assert choose([seats("a", 1), seats("b", 0), seats("c", 0, answering=False)]) == "b"
    assert choose([seats("a", delay=0.3), seats("b", delay=0.01)]) == "b"
    assert choose([seats("a", 2), seats("b", answering=False)]) is None


def test_room_is_counted_where_somebody_answers():
    assert room([seats("a", 1), seats("b", answering=False), seats("c", 5)]) == 1
    assert room([]) == 0
