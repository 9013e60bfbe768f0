"""What keeps a broker group from being switched off, by what its master tells (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from remoting.facts.broker_state import BrokerState
from remoting.names import DEAD_LETTER_PREFIX, RETRY_PREFIX

WRITE: Final = 2  # of a topic's permissions
_NOT_SENT_TO: Final = (RETRY_PREFIX, DEAD_LETTER_PREFIX)  # what comes back there still has to


def what_is_left(state: BrokerState) -> dict[str, int]:
    """What keeps the group from being switched off, by what it is; only what there is any of."""
    timers, transactions, tier = state.timers, state.transactions, state.tier
    levels = state.schedule.levels if state.schedule is not None else ()
    held = [
        queue.in_flight
        for group in state.groups
        if not group.system
        for topic in group.topics
        for queue in topic.queues
        if queue.in_flight > 0
    ]
    counts = {
        "waiting for a time": (timers.waiting + timers.uncounted if timers is not None else 0)
        + sum(each.waiting for each in levels),
        "in open transactions": transactions.open if transactions is not None else 0,
        "popped and not finished": sum(held),
        "not uploaded": tier.waiting_messages if tier is not None else 0,
    }
    return {what: number for what, number in counts.items() if number}


def told(left: Mapping[str, int]) -> str:
    """For people."""
    return ", ".join(f"{number} {what}" for what, number in left.items()) or "nothing"


def open_topics(state: BrokerState) -> dict[str, int]:
    """Topic -> permissions, of those that producers may send to."""
    return {
        each.name: each.perm
        for each in state.topics
        if not each.system and not each.name.startswith(_NOT_SENT_TO) and each.perm > 0 and each.perm & WRITE
    }


def plan_of(state: BrokerState, others: Iterable[str]) -> list[str]:
    """What retiring a group with this master would do now; `others` are broker groups that take messages."""
    topics = len(open_topics(state))
    steps = [f"makes {topics} topic{'' if topics == 1 else 's'} read-only there"]
    if not list(others):
        steps.append("no other broker group has a master: nobody takes messages then")
    steps += [f"waits for messages: {number} {what}" for what, number in what_is_left(state).items()]
    return [*steps, "waits until its tier has everything"]
