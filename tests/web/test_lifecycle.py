"""Operations and report runs live one life: every move from every state, for both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from webapp import lifecycle
from webapp.lifecycle import FINISHED, TRANSITIONS, State, Work, WorkOver
from webapp.operations import progress
from webapp.operations.models import Operation
from webapp.reports import stream
from webapp.reports.models import ReportRun

pytestmark = pytest.mark.django_db

# Written out once more by hand: what each call makes of work in each state; a state that is not named refuses the call.
CALLS: list[tuple[type[Work], Callable[[Any], Any], dict[State, State]]] = [
    (Operation, progress.start, {State.QUEUED: State.RUNNING}),
    (Operation, progress.succeed, {State.RUNNING: State.SUCCEEDED}),
    (
        Operation,
        lambda key: progress.fail(key, "refused", "no"),
        {State.QUEUED: State.FAILED, State.RUNNING: State.FAILED},
    ),
    (Operation, progress.request_cancel, {State.QUEUED: State.CANCELLED, State.RUNNING: State.RUNNING}),
    (
        Operation,
        lambda key: progress.report(key, done=1, total=2, text="half"),
        {State.QUEUED: State.QUEUED, State.RUNNING: State.RUNNING},
    ),
    (Operation, lambda key: progress.node(key, "n", "CONFIRMED"), {state: state for state in Operation.STATES}),
    (ReportRun, stream.starting, {State.QUEUED: State.STARTING}),
    (ReportRun, stream.running, {State.QUEUED: State.RUNNING, State.STARTING: State.RUNNING}),
    (ReportRun, stream.succeeded, {State.RUNNING: State.SUCCEEDED}),
    (
        ReportRun,
        lambda key: stream.failed(key, "no"),
        {State.QUEUED: State.FAILED, State.STARTING: State.FAILED, State.RUNNING: State.FAILED},
    ),
    (
        ReportRun,
        stream.cancelled,
        {State.QUEUED: State.CANCELLED, State.STARTING: State.CANCELLED, State.RUNNING: State.CANCELLED},
    ),
    (
        ReportRun,
        stream.request_cancel,
        {State.QUEUED: State.CANCELLED, State.STARTING: State.STARTING, State.RUNNING: State.RUNNING},
    ),
    (
        ReportRun,
        stream.publish,
        {State.QUEUED: State.QUEUED, State.STARTING: State.STARTING, State.RUNNING: State.RUNNING},
    ),
]


def make(kind: type[Work], state: State) -> Work:
    named = {"kind": "topic.create"} if kind is Operation else {"report": "throughput"}
    return kind.objects.create(requested_by_name="ann", state=state, **named)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """What was announced."""
    told: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(lifecycle, "announce_after_commit", lambda group, event: told.append((group, event)))
    return told


@pytest.mark.parametrize(("kind", "call", "moves"), CALLS)
def test_every_call_in_every_state(
    kind: type[Work], call: Callable[[Any], Any], moves: dict[State, State], heard: list[tuple[str, dict[str, Any]]]
) -> None:
    for state in kind.STATES:
        work = make(kind, state)
        before = kind.objects.filter(pk=work.pk).values().get()
        heard.clear()
        if state in moves:
            call(work.pk)
            work.refresh_from_db()
            event = {"type": "work.changed", "finished": work.state in FINISHED}
            assert (work.state, heard) == (moves[state], [(f"{kind.NOUN}.{work.pk}", event)]), state
        else:
            with pytest.raises(WorkOver, match=f"{kind.NOUN} {work.pk} is {state}"):
                call(work.pk)
            assert (kind.objects.filter(pk=work.pk).values().get(), heard) == (before, []), state


@pytest.mark.parametrize("kind", [Operation, ReportRun])
def test_every_move_from_every_state(kind: type[Work]) -> None:
    for state in kind.STATES:
        for following in State:
            work = make(kind, state)
            if following in TRANSITIONS[state] and following in kind.STATES:
                assert lifecycle.move(kind, work.pk, following).state == following
            else:
                with pytest.raises(WorkOver):
                    lifecycle.move(kind, work.pk, following)
                work.refresh_from_db()
                assert work.state == state


def test_the_states_that_nothing_follows_are_the_finished_ones() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {State.SUCCEEDED, State.FAILED, State.CANCELLED, State.SKIPPED} == FINISHED
    assert set(ReportRun.STATES) - set(Operation.STATES) == {State.STARTING, State.SKIPPED}


def test_the_start_and_the_end_are_written_once() -> None:
    before = timezone.now()
    run = make(ReportRun, State.QUEUED)
    started = stream.starting(run.pk, "session", "tag").started_at
    assert before <= started
    assert stream.running(run.pk).started_at == started
    done = stream.failed(run.pk, "no")
    assert (done.started_at, done.spark_session_id, done.spark_tag) == (started, "session", "tag")
    assert done.finished_at >= started


def test_what_was_never_started_has_no_start() -> None:
    for kind, cancel in ((Operation, progress.request_cancel), (ReportRun, stream.request_cancel)):
        work = cancel(make(kind, State.QUEUED).pk)
        assert (work.cancel_requested, work.started_at) == (True, None)
        assert work.finished_at is not None


def test_every_change_of_a_run_is_counted_and_a_refused_one_is_not() -> None:
    run = make(ReportRun, State.QUEUED)
    for expected, call in enumerate((stream.starting, stream.running, stream.publish, stream.request_cancel), 1):
        assert call(run.pk).last_seq == expected
    assert stream.cancelled(run.pk, "stopped").last_seq == 5
    with pytest.raises(WorkOver):
        stream.publish(run.pk)
    run.refresh_from_db()
    assert (run.last_seq, run.reason, run.rows_count) == (5, "stopped", 0)


def test_a_node_is_heard_after_the_end_too() -> None:
    operation = make(Operation, State.FAILED)
    progress.node(operation.pk, "broker-a", "CONFIRMED")
    operation.refresh_from_db()
    assert (operation.state, operation.nodes[0]["outcome"]) == (State.FAILED, "CONFIRMED")
