"""What clients say about messages in order, and what of it breaks the order (pure).

A message is called KEY/NUMBER: those of one key were sent one after the other, from 0 on, each when the one before was stored. A
client says what happened in lines of JSON, [what, start, end, names], with the times of one monotonic clock in nanoseconds:

- `sent`, or `unsent`, when the attempt failed and may have stored it all the same;
- `got`: one receive and all it brought, in its order;
- `failed`: not acked, so that it comes again, and so does what this receive brought of the key behind it;
- `acked`, or `unacked`, when the attempt failed and may count all the same.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Receive(NamedTuple):
    start: int
    end: int
    names: tuple[str, ...]


@dataclass
class Deliveries:
    """What all clients together said."""

    counts: Counter[tuple[str, str]] = field(
        default_factory=Counter
    )  # by client and what happened; each message of a receive
    sent: dict[str, str] = field(default_factory=dict)  # by whom
    receives: list[Receive] = field(default_factory=list)
    failed: set[str] = field(default_factory=set)
    asked: dict[str, int] = field(default_factory=dict)  # when an ack began first
    acked: dict[str, int] = field(default_factory=dict)  # when one was answered first
    acked_by: dict[str, str] = field(default_factory=dict)

    def take(self, client: str, line: str) -> None:
        """A line of a client; others than those of this form are not about messages."""
        if not line.startswith('["'):
            return
        what, start, end, names = json.loads(line)
        self.counts[client, what] += len(names)
        match what:
            case "got":
                self.receives.append(Receive(start, end, tuple(names)))
            case "sent":
                self.sent.update(dict.fromkeys(names, client))
            case "failed":
                self.failed.update(names)
            case "acked" | "unacked":
                for name in names:
                    self.asked[name] = min(start, self.asked.get(name, start))
                    if what == "acked":
                        self.acked[name] = min(end, self.acked.get(name, end))
                        self.acked_by.setdefault(name, client)

    @property
    def is_all_handled(self) -> bool:
        """Whether somebody handled each message that was sent."""
        return self.sent.keys() <= self.asked.keys()


def out_of_order(found: Deliveries) -> Iterator[str]:
    """What came, for the first time or again, before the message in front of it was handled, and not behind it in one receive."""
    for receive in found.receives:
        for position, name in enumerate(receive.names):
            key, number = _key_and_number(name)
            before = f"{key}/{number - 1}"
            is_behind_it = before in receive.names[:position]
            if number and not is_behind_it and found.asked.get(before, receive.end + 1) > receive.end:
                yield f"{name} came before {before} was handled"


def come_back(found: Deliveries, copies: Mapping[str, int]) -> Iterator[str]:
    """What came in a receive that began after its ack was answered, or after one that brought what is behind it and not itself.

    `copies` says how often each message is stored. Twice, when the answer to its first attempt was lost: such a message may come
    again.
    """
    by_key: dict[str, list[tuple[Receive, set[int]]]] = defaultdict(list)
    for receive in found.receives:
        numbers = defaultdict(set)
        for key, number in map(_key_and_number, receive.names):
            numbers[key].add(number)
        for key, each in numbers.items():
            by_key[key].append((receive, each))
    for key, receives in by_key.items():
        for receive, numbers_of_it in receives:
            for number in sorted(numbers_of_it):
                name = f"{key}/{number}"
                if copies.get(name, 0) > 1:
                    continue
                if found.acked.get(name, receive.start) < receive.start:
                    yield f"{name} was acked and came again"
                if any(
                    other.end < receive.start and number not in brought and max(brought) > number
                    for other, brought in receives
                ):
                    yield f"{name} came again after what is behind it"


def _key_and_number(name: str) -> tuple[str, int]:
    key, _, number = name.rpartition("/")
    return key, int(number)
