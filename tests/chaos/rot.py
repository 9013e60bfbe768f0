"""Changes bytes in a daemon's files, as a disk does: from outside, one bit at a time, and remembers what was there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokerd.store.index.layout import IndexShape
from tests.chaos import plan
from tests.chaos.places import covered_blocks, is_mine, items, records, units

_TOPIC: Final = "Orders"
_CHECKPOINT_BYTES: Final = 68
_RAFT_PLACE_BYTES: Final = 64
_INDEX: Final = IndexShape(20_000, 100_000)

# What makes a broker write its files soon, and look at all of them all the time
SETTINGS: Final = (
    "store.checkpoint_interval_ms=200",
    f"store.index_slots={_INDEX.slots}",
    f"store.index_items={_INDEX.items}",
    "scrub.bytes_per_s=50000000",
    "scrub.round_ms=1000",
)


@dataclass(frozen=True)
class Change:
    """One byte that is not what was written."""

    kind: str
    path: Path
    position: int
    right: int
    wrong: int

    @property
    def is_there(self) -> bool:
        return self._byte() == self.wrong

    @property
    def is_repaired(self) -> bool:
        return self._byte() == self.right

    def _byte(self) -> int:
        try:
            with open(self.path, "rb") as file:
                file.seek(self.position)
                return (file.read(1) or b"\0")[0]
        except FileNotFoundError:
            return -1

    def __str__(self) -> str:
        return f"{self.kind} {self.path.name}:{self.position}"


class Rot:
    """One daemon's disk. It changes the part of the log that is its `share` only, number and count of the brokers, so that others
    have that intact."""

    def __init__(self, directory: Path, rng: random.Random, segment_bytes: int, share: tuple[int, int]) -> None:
        self._directory = directory
        self._rng = rng
        self._segment_bytes = segment_bytes
        self._share = share
        self._changed: set[tuple[Path, int]] = set()
        self._change_in: Mapping[str, Callable[[int], Change | None]] = {
            plan.LOG: self._change_log,
            plan.LOG_END: self._change_log_end,
            plan.QUEUE: self._change_queue,
            plan.CHECKS: self._change_checks,
            plan.INDEX: self._change_index,
            plan.CHECKPOINT: self._change_checkpoint,
            plan.EPOCHS: self._change_epochs,
            plan.RAFT: self._change_raft,
        }

    def change(self, kind: str, upto: int) -> Change | None:
        """Flip a bit in a file of that kind, in what the log has before the offset `upto`; None when there is nothing."""
        return self._change_in[kind](upto)

    def _change_log(self, upto: int) -> Change | None:
        files = sorted(each for each in (self._directory / "commitlog").iterdir() if int(each.name) < upto)
        self._rng.shuffle(files)
        for path in files:
            start = int(path.name)
            found = [
                (at, size)
                for at, size in records(path.read_bytes(), start, self._segment_bytes)
                if start + at + size <= upto and is_mine(start + at, *self._share)
            ]
            if (change := self._flip(plan.LOG, path, found)) is not None:
                return change
        return None

    def _change_log_end(self, _: int) -> Change | None:
        for path in sorted((self._directory / "commitlog").iterdir(), reverse=True):
            found = records(path.read_bytes(), int(path.name), self._segment_bytes)
            if found:
                return self._flip(plan.LOG_END, path, found[-1:])
        return None

    def _change_queue(self, upto: int) -> Change | None:
        paths = sorted((self._directory / "consumequeue" / _TOPIC).glob("*/*"))
        return self._change_one_of(plan.QUEUE, paths, lambda content: units(content, upto))

    def _change_checks(self, _: int) -> Change | None:
        paths = sorted((self._directory / "queueChecks" / _TOPIC).glob("*/*"))
        return self._change_one_of(plan.CHECKS, paths, covered_blocks)

    def _change_index(self, _: int) -> Change | None:
        paths = sorted((self._directory / "index").glob("*"))
        return self._change_one_of(plan.INDEX, paths, lambda content: items(content, _INDEX))

    def _change_checkpoint(self, _: int) -> Change | None:
        return self._change_one_of(
            plan.CHECKPOINT, [self._directory / "checkpoint"], lambda _: ((at, 1) for at in range(_CHECKPOINT_BYTES))
        )

    def _change_epochs(self, _: int) -> Change | None:
        """Digits only: a changed line end says the same."""
        path = self._directory / "epochFileCheckpoint"
        return self._change_one_of(
            plan.EPOCHS, [path], lambda content: [(at, 1) for at, byte in enumerate(content) if chr(byte).isdigit()]
        )

    def _change_raft(self, _: int) -> Change | None:
        path = max((self._directory / "raft").glob("log-*"))

        def places(content: bytes) -> Iterable[tuple[int, int]]:
            return ((at, min(_RAFT_PLACE_BYTES, len(content) - at)) for at in range(0, len(content), _RAFT_PLACE_BYTES))

        return self._change_one_of(plan.RAFT, [path], places)

    def _change_one_of(
        self, kind: str, paths: list[Path], places: Callable[[bytes], Iterable[tuple[int, int]]]
    ) -> Change | None:
        self._rng.shuffle(paths)
        for path in paths:
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            if content and (change := self._flip(kind, path, list(places(content)))) is not None:
                return change
        return None

    def _flip(self, kind: str, path: Path, places: list[tuple[int, int]]) -> Change | None:
        """Flip a bit in one of the places that none was flipped in before."""
        free = [each for each in places if (path, each[0]) not in self._changed]
        if not free:
            return None
        at, size = self._rng.choice(free)
        self._changed.add((path, at))
        position = at + self._rng.randrange(size)
        with open(path, "r+b", buffering=0) as file:
            file.seek(position)
            right = file.read(1)[0]
            wrong = right ^ 1 << self._rng.randrange(8)
            file.seek(position)
            file.write(bytes((wrong,)))
        return Change(kind, path, position, right, wrong)
