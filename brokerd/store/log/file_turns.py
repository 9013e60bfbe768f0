"""The one place where the threads that touch files of the log meet, and the rule by which they do.

Three locks, taken in this order by who needs several:

- `removals`: files that left the log are removed from disk, or the whole log is;
- `contents`: the bytes before the end stay what they are, but for who holds it;
- `names`: which files there are, and which of them is the current one, stays as it is, but for who holds it.

| thread | does what to which file | holds |
|---|---|---|
| event loop | appends to the current file, behind the log's end: nobody else writes there or looks there | nothing |
| event loop | begins the next file | `names` |
| event loop | cuts the log: removes files, zeros the rest of one, names another current one | `contents`, `names` |
| event loop | throws the whole log away, and the files that left it before | all |
| event loop | takes the oldest file out of the log; the file itself stays until it is removed | nothing |
| flusher | syncs any file of the log, up to where it ended when the sync began | `contents` |
| flusher | makes the file after the current one ahead of need (the spare) | `names` |
| housekeeper | removes a file that was taken out, if a reset did not do so | `removals`; `contents` to close it |
| scrubber | writes intact bytes over damaged ones before the end, in any file, and syncs them | `contents` |
| scrubber | reads a file that it opened itself: it may go under it, so what it finds is looked at again | nothing |

What a thread found out before it had the lock it looks at again when it has it: the loop may have cut the log meanwhile, which
starts a new `generation`. Only the loop moves the log's begin and end. It publishes an end after the bytes before it are written,
and a record boundary after the end that contains it, so that who reads first the boundary and then the end, in any thread, has
two positions that hold together.
"""

from __future__ import annotations

import threading


class FileTurns:
    """The locks of one log."""

    __slots__ = ("contents", "names", "removals")

    def __init__(self) -> None:
        self.removals = threading.Lock()
        self.contents = threading.Lock()
        self.names = threading.Lock()
