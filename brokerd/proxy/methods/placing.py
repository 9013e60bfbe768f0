"""Whether this broker group takes a send, by the placement of its topic: what the method asks, and what it hands over (pure).

A recall is handed over in the same way: it belongs to the broker group that its handle names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from brokerd.metadata.configs import TopicConfig
from brokerd.placement.rules import Owner, Waiting
from brokerd.proxy.calls import Call, Handler
from brokerd.proxy.status import Code, Refusal
from brokerd.store.draft import Draft

PLACED: Final = "$placed_send"  # a send that another broker group passes on, as this one owns its message group
RECALL: Final = "$recall"  # a recall that another broker group passes on, as this one gave the handle

CLIENTS_METHODS: Final = {PLACED: "SendMessage", RECALL: "RecallMessage"}


class Unplaced(NamedTuple):
    """A call that is not this broker group's now. `where`: who owns its message groups, or why nobody does; `again` carries the
    call out here, `own` is this group's name. Others take it as `method`. Without message groups it belongs there for good."""

    call: Call
    topic: str
    message_groups: frozenset[str]
    where: str | Waiting
    own: str
    again: Handler
    method: str
    refuse: Callable[[Call, Any, Refusal], None]


class Placing(Protocol):
    def owner(self, topic: str, message_group: str) -> Owner | Waiting | None:
        """See `placement.service.PlacementService.owner`."""

    def elsewhere(self, unplaced: Unplaced) -> None:
        """Answer the call, now or later."""


class Anywhere:
    """Without placements every broker takes what comes."""

    def owner(self, _topic: str, _message_group: str) -> Owner | Waiting | None:
        return None

    def elsewhere(self, unplaced: Unplaced) -> None:
        assert not unplaced.message_groups, f"a message group of {unplaced.topic} without a placement has an owner"
        unplaced.refuse(
            unplaced.call, None, Refusal(Code.BAD_REQUEST, f"broker group {unplaced.where} is not reached from here")
        )


def place(
    placing: Placing, own: str, messages: Sequence[Any], drafts: list[Draft], config: TopicConfig
) -> str | Waiting | None:
    """Put the drafts into the queues that own their message groups, where that is this broker group; else say who has to take
    them all, or why nobody does. Raises Refusal when different ones would have to."""
    if len(messages) == 1:  # as nearly all are
        group = messages[0].system_properties.message_group
        owner = placing.owner(drafts[0].topic, group) if group else None
        if owner is None or owner == (own, drafts[0].queue_id):
            return None
    return _place_all(placing, own, messages, drafts, config)


def _place_all(
    placing: Placing, own: str, messages: Sequence[Any], drafts: list[Draft], config: TopicConfig
) -> str | Waiting | None:
    found: set[str | Waiting] = set()
    for number, message in enumerate(messages):
        group = message.system_properties.message_group
        owner = placing.owner(drafts[number].topic, group) if group else None
        if owner is None:
            found.add(own)
        elif isinstance(owner, Waiting):
            return owner  # what belongs together may be another question by then
        elif owner[0] != own:
            found.add(owner[0])
        elif owner[1] >= max(config.write_queue_nums, config.read_queue_nums):
            return Waiting.MOVES  # the queue is gone, and its message groups move in a moment
        else:
            found.add(own)
            if drafts[number].queue_id != owner[1]:
                drafts[number] = drafts[number]._replace(queue_id=owner[1])
    if len(found) > 1:
        raise Refusal(
            Code.BAD_REQUEST,
            "the message groups of this request belong to different broker groups; send each in a request of its own",
        )
    where = found.pop()
    return where if where != own else None
