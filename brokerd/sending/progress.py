"""How far a kernel came in what several peers sent (pure)."""

from __future__ import annotations

from collections.abc import Sequence

from brokerd.sending.boundary import Source, Stop, Taken


class Progress:
    """How far a kernel came in sources: `found` has what it took of each, `index` is the one that is not at its end yet, and
    `left` how many frames of that may still be taken."""

    __slots__ = ("_sources", "found", "index", "left")

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self.found = [Taken() for _ in sources]
        self.index = 0
        self._begin(sources[0])

    def _begin(self, source: Source) -> None:
        self.found[self.index].position, self.left = source.position, source.most

    def go_on(self) -> None:
        """The present source is at its end."""
        self.index += 1
        if self.index < len(self._sources):
            self._begin(self._sources[self.index])

    def next_frames(self, most: int) -> Source:
        """At most so many frames of the present source."""
        buffer, _, peer, _, reading = self._sources[self.index]
        return Source(buffer, self.found[self.index].position, peer, min(self.left, most), reading)

    def rest(self, most: int) -> list[Source]:
        """At most so many sources, the present one from where it is on."""
        rest = list(self._sources[self.index : self.index + most])
        if rest[0].most != self.left:
            rest[0] = self.next_frames(self.left)
        return rest

    def add(self, others: Taken, most: int) -> Stop:
        """At most so many frames of the present source were taken elsewhere; why no more."""
        taken = self.found[self.index]
        taken.position, taken.stop = others.position, others.stop
        taken.answers += others.answers
        taken.opaques += others.opaques
        if others.early is not None:
            taken.add_early(others.early.answers, others.early.opaques)
        self.left -= min(self.left, most)
        if not self.left and others.stop is Stop.END:
            self.go_on()
        return others.stop
