"""How many copies an acknowledgement means, when a message is refused, and why the answer to a waiting send is late (pure).

One table for the three kinds of group:

- controllers elect its master: every member of the required set must have a message, or (`all_ack_in_sync_state_set=false`,
  weak) `in_sync_replicas` of them; that number is never lowered. Below `min_in_sync_replicas` members nothing is taken;
- fixed roles, and a replica serves reads while the master is away (`acting_master`): replicas within
  `max_gap_not_in_sync_bytes` are in sync. Fewer of them than wanted means refusal, or, with `auto_in_sync_replicas`, fewer
  copies down to the minimum;
- fixed roles alone: `in_sync_replicas`, and nothing is refused.

With `all_ack_in_sync_state_set` (the default) all three wait for the whole required set. Learners are in none of the numbers.
`mastership` asks for every acknowledgement, not once per message: when fewer copies are asked for, those who wait already are let
go too, and when more are, what was acknowledged stays so.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import Final, NamedTuple

from brokerd.replication.settings import ReplicationSettings
from brokerd.store.put_status import PutStatus

ALL: Final = -1


class Kind(Enum):
    """Who decides the roles of a group, and what a replica does while there is no master."""

    CONTROLLERS = "controllers"
    ACTING_MASTER = "acting-master"
    FIXED = "fixed"


class Quorum(NamedTuple):
    """`needed` copies make an acknowledgement, the master's own included; ALL = the whole required set."""

    needed: int
    refused: bool


_ALL_TAKEN: Final = Quorum(ALL, refused=False)
_ALL_REFUSED: Final = Quorum(ALL, refused=True)


def kind_of(settings: ReplicationSettings) -> Kind:
    """The row of the table that applies."""
    if settings.roles == "controllers":
        return Kind.CONTROLLERS
    return Kind.ACTING_MASTER if settings.acting_master else Kind.FIXED


def decide(settings: ReplicationSettings, members: int, near: int) -> Quorum:
    """The quorum now. `members` = size of the required set, master included; `near` = replicas whose gap is small enough."""
    if settings.all_ack_in_sync_state_set:
        return _ALL_REFUSED if members < settings.min_in_sync_replicas else _ALL_TAKEN
    kind, wanted = kind_of(settings), settings.in_sync_replicas
    if kind is Kind.CONTROLLERS:
        return Quorum(wanted, refused=members < settings.min_in_sync_replicas)
    if kind is Kind.FIXED:
        return Quorum(wanted, refused=False)
    present = 1 + near
    needed = wanted
    if settings.auto_in_sync_replicas:
        needed = max(min(wanted, present), settings.min_in_sync_replicas)
    return Quorum(needed, refused=needed > present)


def position_of(quorum: Quorum, own: int, replicas: Iterable[int]) -> int:
    """Up to where the quorum has the log. `replicas` are the positions of those who count, -1 = not known."""
    if quorum.needed == 1:
        return own
    positions = sorted(replicas, reverse=True)
    if quorum.needed == ALL:
        return min(own, positions[-1]) if positions else own
    others = quorum.needed - 1
    return min(own, positions[others - 1]) if others <= len(positions) else -1


def overdue(settings: ReplicationSettings, waited_ms: int, *, flushed: bool, replicated: bool) -> PutStatus | None:
    """The answer for a send that has waited this long, None = let it wait on.

    Replicas have `ack_timeout_ms`, the own disk `flush_timeout_ms`. The message is in the log in every case.
    """
    replicas_late = not replicated and waited_ms >= settings.ack_timeout_ms
    disk_late = not flushed and waited_ms >= settings.flush_timeout_ms
    if replicas_late and (flushed or disk_late):
        return PutStatus.FLUSH_SLAVE_TIMEOUT
    if disk_late and replicated:
        return PutStatus.FLUSH_DISK_TIMEOUT
    return None


def patience_ms(settings: ReplicationSettings) -> int:
    """Nobody is answered for being late before this."""
    return min(settings.ack_timeout_ms, settings.flush_timeout_ms)


def weaknesses(settings: ReplicationSettings) -> list[str]:
    """What these settings give up, as sentences for the log, the metrics and the console; the table is in docs/RELIABILITY.md."""
    found = []
    if not settings.all_ack_in_sync_state_set:
        found.append(
            f"all_ack_in_sync_state_set=false: {settings.in_sync_replicas} of the members must have a message; "
            + (
                "an election may choose one that does not, and what was acknowledged is lost"
                if settings.roles == "controllers"
                else "what only the lost disk had is lost"
            )
        )
    if settings.ack_after == "append":
        found.append("ack_after=append: an acknowledgement means memory; a power loss of all members loses it")
    if settings.auto_in_sync_replicas and not settings.all_ack_in_sync_state_set and settings.roles == "fixed":
        found.append(
            f"auto_in_sync_replicas=true: with fewer replicas in sync, {settings.min_in_sync_replicas} "
            f"{'copy is' if settings.min_in_sync_replicas == 1 else 'copies are'} enough"
        )
    if settings.plain_peers:
        found.append(
            f"plain_peers={settings.plain_peers}: whoever comes from there need not prove himself, and acknowledges from memory"
        )
    return found
