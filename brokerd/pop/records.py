"""The records of pop state in the replicated log: what each kind holds, and how it is read back (pure).

A record is a JSON object with the member `v`, the version of its layout. The kind travels as the message's TAGS. Messages are
named by the queue, the pop time of the batch that holds them and their place in that batch, as a bit mask. Pop times strictly
increase in a queue, so under load they run ahead of the clock; when a batch is due is therefore written beside them:

    taken    {v, g: group, pt: pop time, inv: invisible time, due, c: client of a lease or "", a: attempt id, o: ordered,
              b: [[topic, queue, next offset, first offset, shape, delivery counts or null], ...],
              r: [[topic, queue, pop time, mask], ...], left out when it lets go of nothing,
              tag: what its handles end with, left out when they have none,
              h: [message groups of each batch, ...], left out when the order is that of the queue}
    acked    {v, a: [[group, topic, queue, pop time, mask], ...]}
    revived  like acked: the messages were copied to the retry or dead-letter topic, or had nothing left to copy
    changed  {v, c: [[group, topic, queue, pop time, place, new pop time, new invisible time,
              due], ...]}: the tag stays
    reset    {v, g, t, q, o: offset}: the queue starts at `o`, and nothing of it is in flight
    dropped  {v, g: group or null, t: topic or null}: forget what matches both
    snapshot rows: ["q", group, topic, queue, next offset, last pop time] and
              ["b", group, topic, queue, pop time, invisible time, due, first offset, shape, mask, client, attempt id,
               counts, ordered]
    rows that releases before this one pass over: ["t", group, topic, queue, [[pop time, tag or "", acked mask], ...]], behind
              those of the batches, and
              ["h", group, topic, queue, [[pop time, message groups], ...]], likewise

`shape` is the number of messages when their offsets are consecutive, else the list of their distances from the first offset.
A batch without messages only moves the queue's next offset. A tag is written as the handles show it.

`r` is there when messages come again: the places of older batches that the pop lets go of. Those at offsets of its own batches
are with its client now; the others are finished: its filter does not admit them, or they are gone from the store. Records of
earlier versions have none, and an ordered pop of theirs lets go of whatever offsets it takes.

The message groups of a batch are the hashes of `group_order`, eight bytes for each message, in base64. New messages that are
passed over, because something of their group is with a client, are a batch of their own with the invisible time 0, due at once,
and 0 deliveries each. So releases that do not know `h` give them in the order of the queue. Where a pop passes over some messages
and takes others, all of them are such a batch first, and the record of the pop lets go of those that it takes: wherever a change
of master cuts, each is in one batch.

A message that leaves its queue (for the dead-letter or the retry topic) is first taken by the broker itself, with the invisible
time -1; `a` says why, and where its copy may begin in the log: `dead N`, `forwarded N` (a client asked for it), `retry N`. So it
is finished for its group before a copy of it is there (`departures`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from brokerd.pop.handles import proof_of

POP_TOPIC: Final = "rmq_sys_logboom_pop"
VERSION: Final = 1
MAX_ENTRIES: Final = 8192  # with the longest names still less than a message may hold

TAKEN: Final = "taken"
ACKED: Final = "acked"
CHANGED: Final = "changed"
REVIVED: Final = "revived"
RESET: Final = "reset"
DROPPED: Final = "dropped"
KINDS: Final = (TAKEN, ACKED, CHANGED, REVIVED, RESET, DROPPED)

OWN_INVISIBLE_MS: Final = -1  # of what the broker takes itself; no client may ask for it
DEAD: Final = "dead"
FORWARDED: Final = "forwarded"
RETRY: Final = "retry"

Shape = int | list[int]
Body = Mapping[str, Any]


class Pop(NamedTuple):
    """What all batches of one pop have in common. `client_id` is that of a lease; empty for what comes back at its time."""

    pop_time_ms: int
    invisible_time_ms: int
    due_ms: int
    client_id: str = ""
    attempt_id: str = ""
    ordered: bool = False
    tag: int = 0


def shape_of(offsets: Sequence[int]) -> Shape:
    """How ascending offsets are written beside the first of them."""
    count = len(offsets)
    if not count or offsets[-1] - offsets[0] == count - 1:
        return count
    first = offsets[0]
    return [offset - first for offset in offsets]


def taken_batch(
    topic: str, queue_id: int, next_offset: int, offsets: Sequence[int], counts: Sequence[int] | None = None
) -> list[Any]:
    """One batch of a `taken` record; `counts` only where some message was delivered before from this very queue."""
    first = offsets[0] if offsets else next_offset
    return [topic, queue_id, next_offset, first, shape_of(offsets), list(counts) if counts is not None else None]


def taken(
    group: str,
    pop: Pop,
    batches: Sequence[list[Any]],
    released: Sequence[list[Any]] = (),
    hashes: Sequence[str] | None = None,
) -> dict[str, Any]:
    """`hashes` are the message groups of each batch, empty for one without messages; None = they do not matter."""
    body = {
        "v": VERSION,
        "g": group,
        "pt": pop.pop_time_ms,
        "inv": pop.invisible_time_ms,
        "due": pop.due_ms,
        "c": pop.client_id,
        "a": pop.attempt_id,
        "o": pop.ordered,
        "b": batches,
    }
    if released:
        body["r"] = released
    if pop.tag:
        body["tag"] = proof_of(pop.tag)
    if hashes is not None:
        body["h"] = hashes
    return body


def pop_of(body: Body) -> Pop:
    """What the batches of a `taken` record have in common."""
    tag = tag_of(body.get("tag", ""))
    return Pop(body["pt"], body["inv"], body["due"], body["c"], body["a"], body["o"], tag)


def tag_of(text: str) -> int:
    """A tag as records hold it; 0 for none."""
    return int(text, 16) if text else 0


def finished(entries: Sequence[list[Any]]) -> dict[str, Any]:
    """The body of an `acked` or `revived` record."""
    return {"v": VERSION, "a": entries}


def changed(entries: Sequence[list[Any]]) -> dict[str, Any]:
    return {"v": VERSION, "c": entries}


def reset(group: str, topic: str, queue_id: int, offset: int) -> dict[str, Any]:
    return {"v": VERSION, "g": group, "t": topic, "q": queue_id, "o": offset}


def dropped(group: str | None, topic: str | None) -> dict[str, Any]:
    return {"v": VERSION, "g": group, "t": topic}
