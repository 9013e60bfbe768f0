"""The one place where the threads that touch files of the log meet, and the rule by which they do.

Four locks, taken in this order by who needs several:

- `removals`: files that left the log are removed from disk, or the whole log is;
- `contents`: the bytes before the end stay what they are, but for who holds it;
- `names`: which files there are, and which of them is the current one, stays as it is, but for who holds it;
- `looks`: files stay as long as they are while somebody looks at their mappings; whoever cuts one waits until nobody does.

| thread | does what to which file | holds |
|---|---|---|
| event loop | appends to the current file, behind the log's end: nobody else writes there or looks there | nothing |
| event loop | has the disk begin to write what it appended, before the flusher syncs that | nothing |
| event loop | zeros what an append that failed left behind the end, and syncs that | `contents`, `looks` |
| event loop | begins the next file | `names` |
| event loop | cuts the log: removes files, zeros the rest of one, names another current one | `contents`, `names`, `looks` |
| event loop | throws the whole log away, and the files that left it before | all |
| event loop | takes the oldest file out of the log; the file itself stays until it is removed | nothing |
| flusher | syncs any file of the log, up to where it ended when the sync began | `contents` |
| flusher | syncs the last one, again and again (`syncs_in_c`) | `contents`, until somebody wants it |
| flusher | makes the file after the current one ahead of need (the spare) | `names` |
| housekeeper | removes a file that was taken out, if a reset did not do so | `removals`; `contents` to close it |
| scrubber | writes intact bytes over damaged ones before the end, in any file, and syncs them | `contents` |
| scrubber | reads a file that it opened itself: it may go under it, so what it finds is looked at again | nothing |
| carrier | appends likewise while the loop lends it the end (`native/lane.py`) | nothing: `MessageStore.settle` ends it |
| carrier | copies records out of a file: of its mapping, as tier helpers do, or read | nothing: `Looks.enders` has it finish |
| tier helper | copies records out of the mapping of a file, which may have left the log meanwhile | a share of `looks` |

What a thread found out before it had the lock it looks at again when it has it: the loop may have cut the log meanwhile, which
starts a new `generation`. Only the loop moves the log's begin and end. It publishes an end after the bytes before it are written,
and a record boundary after the end that contains it, so that who reads first the boundary and then the end, in any thread, has
two positions that hold together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Looks:
    """Who looks at mappings: any number at once, or nobody. Who looks at a page that was cut off ends with the whole process.

    `enders` return when somebody does not look any more who begins to by the loop's will alone.
    """

    __slots__ = ("_changed", "_count", "enders")

    def __init__(self) -> None:
        self.enders: list[Callable[[], None]] = []
        self._changed = threading.Condition()
        self._count = 0

    @contextmanager
    def share(self) -> Iterator[None]:
        """Look, for milliseconds."""
        with self._changed:
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    @contextmanager
    def nobody(self) -> Iterator[None]:
        """Wait until nobody does; nobody begins to inside. By the loop."""
        for end in self.enders:
            end()
        with self._changed:
            self._changed.wait_for(lambda: not self._count)
            yield


class Contents:
    """A lock that who comes first has first. Somebody may hold it for long while nobody else wants it: he is told to let it go by
    `when_wanted`."""

    __slots__ = ("_changed", "_counting", "_next", "_turn", "_wanted", "when_wanted")

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._changed = threading.Condition(self._counting)
        self._next = self._turn = 0  # the number of who comes next, and of whose turn it is
        self._wanted = 0
        self.when_wanted: Callable[[], None] | None = None  # called in the thread of who wants it

    def __enter__(self) -> None:
        with self._changed:
            self._wanted += 1
            number = self._take_number()
        if (tell := self.when_wanted) is not None:
            tell()
        with self._changed:
            self._changed.wait_for(lambda: self._turn == number)
            self._wanted -= 1

    def __exit__(self, *_error: object) -> None:
        self._pass_on()

    def locked(self) -> bool:
        """Whether somebody has it, or is on his way."""
        return self._turn != self._next or self._counting.locked()

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for it."""
        return self._wanted > 0

    @contextmanager
    def while_nobody_wants(self) -> Iterator[None]:
        """Hold it in turn, and let it go soon after `when_wanted` is heard. Who came before that was heard, `is_wanted` tells."""
        with self._changed:
            number = self._take_number()
            self._changed.wait_for(lambda: self._turn == number)
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        with self._changed:
            self._turn += 1
            self._changed.notify_all()

    def _take_number(self) -> int:
        number = self._next
        self._next += 1
        return number


class FileTurns:
    """The locks of one log."""

    __slots__ = ("contents", "looks", "names", "removals")

    def __init__(self) -> None:
        self.removals = threading.Lock()
        self.contents = Contents()
        self.names = threading.Lock()
        self.looks = Looks()
