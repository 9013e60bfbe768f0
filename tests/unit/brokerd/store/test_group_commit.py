"""No put waits for more than two syncs: the one that is under way when it comes, and the next one, which begins at once.

First a model of the flusher's thread and of the loop, step by step as they look at what they share, in every order of their
steps; then the flusher itself, whose syncs begin and end at random beside puts.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from random import Random

import pytest

from brokerd.store.log.commitlog import SyncMark
from brokerd.store.log.flusher import Flusher
from remoting.errors import StorageError

MOST_SYNCS = 2
DEADLINE_S = 60
PUTS = 4


@dataclass(frozen=True)
class State:
    """Of the model. `loop` and `thread` are what each does next; `waits` has, for each put, how many syncs ended since."""

    loop: str = "append"
    thread: str = "look"
    requests: int = 0
    asleep: bool = False
    wakes: int = 0
    seen: int = 0  # the thread's own
    answered: int = 0
    covered: int = 0  # how many puts the sync under way covers, and
    durable: int = 0  # the last one did
    waits: tuple[int, ...] = ()


def loop_steps(state: State) -> Iterator[State]:
    """`Flusher.request` behind an append."""
    if state.loop == "append" and len(state.waits) < PUTS:
        yield replace(state, loop="count", waits=(*state.waits, 0))
    elif state.loop == "count":
        yield replace(state, loop="wake", requests=state.requests + 1)
    elif state.loop == "wake":
        yield replace(state, loop="append", asleep=False, wakes=state.wakes + state.asleep)


def thread_steps(state: State, *, looks_again: bool, in_c: bool) -> Iterator[State]:
    """`Flusher._serve`, or `native_syncs_serve`, which leaves `asleep` as it is when it does not sleep; without the second look
    for a mutant."""
    if state.thread == "look":
        yield replace(state, thread="begin" if state.requests != state.answered else "sleep", seen=state.requests)
    elif state.thread == "begin":
        yield replace(state, thread="end", covered=len(state.waits))
    elif state.thread == "end":
        late = tuple(count + (number >= state.durable) for number, count in enumerate(state.waits))
        yield replace(state, thread="look", answered=state.seen, durable=state.covered, waits=late)
    elif state.thread == "sleep":
        yield replace(state, thread="look again" if looks_again else "wait", asleep=True)
    elif state.thread == "look again":
        if state.requests != state.answered:
            yield replace(state, thread="look", asleep=in_c)
        else:
            yield replace(state, thread="wait")
    elif state.thread == "wait" and state.wakes:
        yield replace(state, thread="look", wakes=state.wakes - 1)


def explore(*, looks_again: bool, in_c: bool = False) -> tuple[int, int, list[State]]:
    """(states, the most syncs that a put waited for, states in which nothing happens any more though a put waits)."""
    found, todo, most, stuck = {State()}, [State()], 0, []
    while todo:
        state = todo.pop()
        most = max(most, *state.waits, 0)
        following = [*loop_steps(state), *thread_steps(state, looks_again=looks_again, in_c=in_c)]
        if not following and state.durable < len(state.waits):
            stuck.append(state)
        for each in following:
            if each not in found:
                found.add(each)
                todo.append(each)
    return len(found), most, stuck


@pytest.mark.parametrize("in_c", [False, True])
def test_in_every_order_of_steps_a_put_waits_for_two_syncs_at_most_and_none_is_forgotten(in_c: bool) -> None:
    states, most, stuck = explore(looks_again=True, in_c=in_c)
    assert states > 1000
    assert most == MOST_SYNCS
    assert stuck == []


@pytest.mark.parametrize("in_c", [False, True])
def test_the_model_finds_a_put_that_nobody_wakes_the_thread_for(in_c: bool) -> None:
    assert explore(looks_again=False, in_c=in_c)[2]


class Gate:
    """A store whose syncs end when the test lets them. `covers` has what each sync covers, in the order in which they begin."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.covers: list[int] = []
        self.begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)
        self.flushed_offset = 0

    def sync(self) -> SyncMark:
        mark = SyncMark(self.end_offset, self.end_offset, 0)
        self.covers.append(mark.offset)
        self.begun.release()
        assert self.may_end.acquire(timeout=DEADLINE_S)
        return mark

    def mark_flushed(self, mark: SyncMark) -> None:
        self.flushed_offset = mark.offset

    def note_flushed(self, mark: SyncMark) -> None: ...

    def prepare_next_segment(self) -> None: ...

    def fail(self, error: StorageError) -> None:
        raise error


@pytest.fixture
async def gate() -> AsyncIterator[tuple[Gate, Flusher]]:
    gate = Gate()
    flusher = Flusher(gate)
    flusher.start()
    yield gate, flusher
    await flusher.stop()


@pytest.mark.parametrize("seed", range(10))
async def test_the_flusher_has_a_put_wait_for_two_syncs_at_most(gate: tuple[Gate, Flusher], seed: int) -> None:
    store, flusher = gate
    rng, begun, ended = Random(seed), 0, 0
    puts: list[tuple[int, int]] = []  # where each ends, and how many syncs had ended when it came
    for _ in range(300):
        if rng.random() < 0.7:
            store.end_offset += 1
            puts.append((store.end_offset, ended))
            flusher.request()
        elif puts and (begun > ended or puts[-1][0] > (store.covers or [0])[-1]):
            if begun == ended:
                assert await asyncio.to_thread(store.begun.acquire, timeout=DEADLINE_S)
                begun += 1
            ended += 1
            store.may_end.release()
    for _ in range(MOST_SYNCS):
        store.may_end.release()
    await flusher.stop()
    for offset, before in puts:
        in_time = store.covers[before : before + MOST_SYNCS]
        assert max(in_time) >= offset, f"the put at {offset} came when {before} syncs had ended: {store.covers}"
    assert store.flushed_offset == len(puts)
