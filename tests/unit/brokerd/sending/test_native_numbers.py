"""Numbers that C takes from rows are those that Python takes one by one, whoever else takes some, and whatever goes between."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from brokerd.metadata.configs import TopicConfig
from brokerd.sending import native_kernel
from brokerd.sending.boundary import SendKernel, Source
from brokerd.sending.kernel import Kernel
from brokerd.sending.native_kernel import NativeKernel
from brokerd.store.queues.queue_offsets import QueueOffsets
from brokerd.store.run import Run
from tests.support.client_bytes import encode_batch_body
from tests.support.native_library import native_library
from tests.unit.brokerd.sending.kernel_sends import BATCH, NOW_MS, OTHER, SINGLE, item, json_send
from tests.unit.brokerd.sending.test_native_kernel import PEER, kernels, new_run, outcome

QUEUES = {"T": 4, "U": 1, "Ta": 9}
KEYS = [(topic, queue_id) for topic, count in QUEUES.items() for queue_id in range(count)]
DELAYED = f"{SINGLE['i']}DELAY\x01{{}}\x02"


def frame_of(random: Random) -> bytes:
    """A send to some queue, or one whose queue the broker chooses; now and then what the library leaves to its twin."""
    topic, queue_id = random.choice(KEYS)
    fields = {**SINGLE, "b": topic, "e": str(queue_id if random.random() < 0.9 else -1)}
    kind = random.random()
    if kind < 0.03:
        return OTHER["two keys"]
    if kind < 0.1:
        return json_send({**fields, "i": DELAYED.format(random.randrange(1, 4))})
    if kind < 0.25:
        items = [item(n) for n in range(random.randrange(1, 5))]
        return json_send({**BATCH, **fields, "i": BATCH["i"], "m": "true"}, encode_batch_body(items), code=320)
    return json_send(fields, b"b" * random.randrange(1, 30))


class Pair:
    """Both kernels, each with numbers of its own."""

    def __init__(self) -> None:
        self.kernels: tuple[Kernel, NativeKernel] = kernels()
        table = {key: 10 * number for number, key in enumerate(KEYS[::2])}
        self.offsets = QueueOffsets(table), QueueOffsets(table)
        self.end = 1 << 33

    def new_runs(self) -> list[Run]:
        return [Run(self.end, 1 << 40, 1 << 20, NOW_MS, each.taking(), True) for each in self.offsets]

    def take(self, runs: Sequence[Run], random: Random) -> None:
        """Have both take what some peers sent, in one way or another."""
        sent = [b"".join(frame_of(random) for _ in range(random.randrange(9))) for _ in range(random.randrange(1, 4))]
        sources = [Source(data, 0, PEER, 128) for data in sent]
        twin, native = self.kernels
        taken = twin.take(runs[0], sources)
        if random.random() < 0.5:
            assert [outcome(runs[1], each) for each in native.take(runs[1], sources)][-1]["stop"] == (
                taken[-1].position,
                taken[-1].stop,
            )
        else:
            together = native.take_together(runs[1], sent, [PEER] * len(sent), 128)
            rest = sources[together.done :]
            if rest and len(together.positions) > together.done:
                rest[0] = rest[0]._replace(position=together.positions[-1], most=128 - together.frames[-1])
            if rest:
                native.take(runs[1], rest)

    def end_of(self, runs: Sequence[Run], random: Random) -> None:
        """The runs are in the log, or dropped."""
        assert b"".join(runs[0].records) == b"".join(runs[1].records)
        if random.random() < 0.3:
            assert dict(runs[0].next_offsets) == dict(runs[1].next_offsets)
        if random.random() < 0.8:
            for offsets, run in zip(self.offsets, runs, strict=True):
                offsets.advance(run.taken)
            self.end = runs[0].end_offset
        self.check()

    def change(self, random: Random) -> None:
        """Somebody else appends, a topic goes, or its queues become others, or all numbers are found again."""
        what, key, more = random.randrange(8), random.choice(KEYS), random.randrange(1, 9)
        kernels: tuple[SendKernel, ...] = self.kernels
        for kernel, offsets in zip(kernels, self.offsets, strict=True):
            if what == 0:
                run = Run(self.end, 1 << 40, 1 << 20, NOW_MS, offsets.taking(), True)
                run.next_offsets[key] += more
                run.next_offsets["Other", more] = 5
                offsets.advance(run.taken)
            elif what == 1:
                offsets.forget(key[0])
            elif what == 2:
                offsets.rebuild({**offsets.table, key: more})
            elif what == 3:
                kernel.topics_changed({key[0]: TopicConfig(key[0], QUEUES[key[0]], QUEUES[key[0]], 6)})
            elif what == 4:
                offsets.take([(*key, 0, 0, 100, 0, 0, more)])
        self.check()

    def check(self) -> None:
        assert self.offsets[0].table == self.offsets[1].table


@pytest.mark.parametrize("seed", range(30))
def test_numbers_are_the_same_whoever_takes_them(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 3 == 0:  # a turn of several calls
        monkeypatch.setattr(native_kernel, "_FRAMES", 6)
    random, pair = Random(seed), Pair()
    for _ in range(40):
        runs = pair.new_runs()
        for _ in range(random.choice((1, 1, 2, 3))):
            pair.take(runs, random)
        pair.end_of(runs, random)
        pair.change(random)


def test_runs_that_are_laid_out_in_turn_know_nothing_of_each_other() -> None:
    """One of them is dropped, whichever it is."""
    twin, native = kernels()
    data = json_send(SINGLE) * 2 + json_send({**SINGLE, "b": "U", "e": "0"})
    for order in ((0, 1, 0, 1), (0, 1, 1, 0, 0), (1, 0, 0, 1, 1, 0)):
        results: list[Any] = []
        for kernel in (twin, native):
            runs = new_run(), new_run()
            for index in order:
                kernel.take(runs[index], [Source(data, 0, PEER, 9)])
            results.append([(b"".join(run.records), dict(run.next_offsets)) for run in runs])
        assert results[0] == results[1]


def test_a_call_asks_nobody_for_numbers_of_queues_that_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many queues its messages are for, and also in the second call for a run."""
    _, native = kernels()
    data = b"".join(json_send({**SINGLE, "b": topic, "e": str(queue_id)}) for topic, queue_id in KEYS)
    offsets = QueueOffsets()

    def take() -> None:
        run = Run(0, 1 << 40, 1 << 20, NOW_MS, offsets.taking(), True)
        for _ in range(2):
            native.take_together(run, [data], [PEER], 128)
        assert not run.taken, "what C took is not settled"
        offsets.advance(run.taken)

    take()
    for name in ("_meet", "_has_guessed", "_guess", "_undo"):
        monkeypatch.setattr(native, name, None)
    for _ in range(3):
        take()
    assert offsets.table == dict.fromkeys(KEYS, 8)
    monkeypatch.undo()
    offsets.forget("T")
    take()
    assert offsets.table == {key: 2 if key[0] == "T" else 10 for key in KEYS}


def test_rows_that_are_not_there_are_not_touched() -> None:
    """Of slots and rows there are so many; what lies behind stays as it is."""
    store = native_library().function("native_take_numbers", None, *native_kernel._TAKE_ARGUMENTS)
    of_slots, numbers = array("q", (0, 2, -1, 3, 1, 0)), array("q", (7, 7, 7, 99))
    touched = array("q", [each for slot in (-1, 0, 1, 2, 3, 4, 5, 1 << 40) for each in (slot, 5, 50 + slot % 9)])
    rows = native_kernel._ROWS.pack(of_slots.buffer_info()[0], numbers.buffer_info()[0], 5, 3)
    store(rows, touched.buffer_info()[0], len(touched) // 3)
    assert list(numbers) == [50, 54, 51, 99]


def test_tables_are_asked_one_by_one_and_as_a_whole() -> None:
    offsets = QueueOffsets({("T", 0): 5, ("T", 1): 0})
    taken = offsets.taking()
    taken["T", 1] = taken["T", 1] + 3
    assert offsets.table == {("T", 0): 5}
    assert taken.next_of([("T", 0), ("T", 1), ("U", 0)]) == [5, 3, 0]
    offsets.advance(taken)
    offsets.forget("T")
    rows = {offsets.row_of(key) for key in (("A", 0), ("B", 0), ("C", 0))}
    assert rows == {0, 1, 2}, "rows of queues that went are given to others"
    assert [offsets.get(key) for key in (("A", 0), ("B", 0), ("T", 1))] == [0, 0, 0]
