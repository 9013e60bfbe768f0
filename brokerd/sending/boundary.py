"""The boundary of the send kernel: read buffers in; log bytes, queue entries and answers out (pure).

`kernel.Kernel` is the kernel in Python. A compiled one takes its place behind this protocol: it keeps what it knows of topics to
itself, gets buffers as they were received and decodes their frames, and tells by position how far it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from enum import Enum, auto
from typing import Final, NamedTuple, Protocol

from brokerd.metadata.configs import TopicConfig
from brokerd.sending.readings import Reading
from brokerd.store.run import Run
from remoting.frame import Command


class Stop(Enum):
    """Why the kernel took no more."""

    END = auto()  # of what is there, or of how much was to be taken; an unfinished frame may follow
    OTHER = auto()  # what comes next is not for the kernel
    FULL = auto()  # what comes next has no room in the run, but has in another file of the log


class Source(NamedTuple):
    """What one peer (packed address and port) sent, from a position of a buffer on, and how many frames may be taken of it. Of
    the first frames of the buffer the library may have a reading."""

    buffer: bytes
    position: int
    peer: bytes
    most: int
    reading: Reading | None = None


class Taken:
    """What the kernel laid out of one source. `position` is where the next frame begins, or the index of the next request;
    `answers` are frames in pieces, for when the run is acknowledged, to the requests that `opaques` names; `early` has the same
    for when it is in the log, to who does not want to wait longer."""

    __slots__ = ("answers", "early", "opaques", "position", "stop")

    def __init__(self) -> None:
        self.position = 0
        self.stop = Stop.END
        self.answers: list[bytes] = []
        self.opaques: list[int] = []
        self.early: Taken | None = None

    @property
    def answered(self) -> int:
        """How many requests are answered."""
        return len(self.opaques) + (0 if self.early is None else len(self.early.opaques))

    def add_early(self, answers: list[bytes], opaques: list[int]) -> None:
        """These are answered as soon as the run is in the log."""
        if self.early is None:
            self.early = Taken()
        self.early.answers += answers
        self.early.opaques += opaques


class Together(NamedTuple):
    """What the kernel laid out at once of several sources: of the first `done`, which are at their end, and of the one where it
    stopped, if it took something of that. Of each: where the next frame begins, how many frames were taken, how many of these
    are answered, and where its answers end in `content`, in which they lie one behind the other; to the requests that `opaques`
    names. `early` are the numbers of answers for who does not wait for more than that the run is in the log."""

    done: int
    positions: Sequence[int]
    frames: Sequence[int]
    counts: Sequence[int]
    ends: Sequence[int]
    content: bytes
    opaques: Sequence[int]
    early: Set[int]

    def apart(self) -> Iterator[Taken]:
        """The same of each source."""
        at = number = 0
        for position, count, end in zip(self.positions, self.counts, self.ends, strict=True):
            taken = Taken()
            taken.position = position
            for opaque in self.opaques[number : number + count]:
                answer_end = at + 4 + int.from_bytes(self.content[at : at + 4])
                if number in self.early:
                    taken.add_early([self.content[at:answer_end]], [opaque])
                else:
                    taken.answers.append(self.content[at:answer_end])
                    taken.opaques.append(opaque)
                at, number = answer_end, number + 1
            assert at == end, "answers lie one behind the other"
            yield taken


# What follows the opening of an answer's header: the space after "code" keeps the frame's length when the caller turns 0 into a
# two-digit put status.
ANSWER_OK: Final = b'{"code": 0,'


class SendKernel(Protocol):
    """Lays out the ordinary sends among what clients send behind what a run holds, and stops before anything else."""

    @property
    def topics(self) -> frozenset[str]:
        """The topics whose sends it takes."""

    def topics_changed(self, topics: Mapping[str, TopicConfig | None]) -> None:
        """These topics are like this now; None for one that is gone."""

    def may_take(self, buffer: bytes, peer: bytes) -> bool:
        """Whether a buffer that a peer (packed address and port) sent seems to begin with an ordinary send, and has all of it."""

    def take(self, run: Run, sources: Sequence[Source]) -> list[Taken]:
        """Lay out sends of the sources (at least one), one behind the other: what came of each, up to the first that ends with
        another stop than `Stop.END`. Those behind it were not looked at."""

    def take_together(self, run: Run, buffers: Sequence[bytes], peers: Sequence[bytes], most: int) -> Together | None:
        """Lay out sends of buffers, at most so many of each, as far as that is done at once; None when it takes them one by one.
        What is left goes to `take`."""

    def take_decoded(self, run: Run, requests: Sequence[Command], first: int, peer: bytes) -> Taken:
        """Lay out sends with short field names that had to be decoded before, from the index `first` on."""
