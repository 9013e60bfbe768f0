"""The master's view of its sync-state set, and the set that must have a message before it is acknowledged (pure).

The controller owns the set and elects only its members; the master proposes changes and learns the outcome late, or never. The
required set R is therefore wider than what the master believes the set to be:

    R = local set  +  every proposal whose outcome is not known  +  replicas that are joining

R contains the controller's set at every instant, so whoever is elected has all that was acknowledged. The rules that keep it so:

1. A replica joins R before it is proposed, at the moment when it has everything acknowledged so far (the caller checks that and
   joins in one step, with no acknowledgement in between).
2. One proposal at a time. A proposal names the set epoch that it is based on; the controller accepts at most one per base.
3. Only an answer from a closed list means "this proposal did nothing". Anything else (time-out, lost connection, "not the
   leader": it may have been logged before the leadership went) leaves the outcome unknown, and the proposed members stay in R
   until the set epoch has moved past the proposal's base: then it has been applied or never will be. Seeing the base epoch
   again proves nothing, the request may still be on its way.
4. A member leaves R only when the controller has accepted a set without it.

One object per mastership, owned by `mastership`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from remoting import codes
from remoting.invariants import monotonic

# Answers to an alteration that prove that it was not, and will not be, applied.
REFUSALS = frozenset(
    {
        codes.CONTROLLER_FENCED_MASTER_EPOCH,
        codes.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
        codes.CONTROLLER_INVALID_MASTER,
        codes.CONTROLLER_INVALID_REPLICAS,
        codes.CONTROLLER_BROKER_NOT_ALIVE,
        codes.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
    }
)
# Refusals that name a proposed member as the reason; the others say that this master's view is behind.
_MEMBER_REFUSALS = frozenset({codes.CONTROLLER_INVALID_REPLICAS, codes.CONTROLLER_BROKER_NOT_ALIVE})


@dataclass(frozen=True, slots=True)
class Proposal:
    """An absolute set, and the set epoch it is to replace. `token` tells attempts apart."""

    token: int
    members: frozenset[int]
    base_epoch: int


class SyncState:
    """The sets of one mastership; every method is one step of the protocol."""

    def __init__(
        self,
        self_id: int,
        members: Iterable[int],
        set_epoch: int,
        *,
        retry_ms: int,
        rejoin_delay_ms: int,
        first_token: int = 1,
    ) -> None:
        """`first_token` keeps the tokens of different masterships apart."""
        self.self_id = self_id
        self.local: frozenset[int] = frozenset(members)
        self.set_epoch = set_epoch
        self._retry_ms = retry_ms
        self._rejoin_delay_ms = rejoin_delay_ms
        self.joining: set[int] = set()
        self.in_flight: Proposal | None = None
        # (members, base epoch) of attempts without a proven outcome
        self._unknown: set[tuple[frozenset[int], int]] = set()
        self.needs_read = False  # a linearizable read of the set should be asked for before anything else is proposed
        self._not_before_ms = 0
        self._barred_until_ms: dict[int, int] = {}
        self._next_token = first_token
        self.required: frozenset[int] = self.local | {self_id}

    # What the master asks

    @property
    def is_settled(self) -> bool:
        """Whether the set is known, and nothing of it is asked for."""
        return not (self.joining or self._unknown or self.needs_read) and self.in_flight is None

    def may_join(self, broker_id: int, now_ms: int) -> bool:
        return broker_id not in self.joining | self.local and now_ms >= self._barred_until_ms.get(broker_id, 0)

    def join(self, broker_id: int) -> None:
        """Require this replica's acks from now on (rule 1)."""
        assert broker_id != self.self_id
        self._barred_until_ms.pop(broker_id, None)
        self.joining.add(broker_id)
        self._recompute()

    def leave_joining(self, broker_ids: Iterable[int]) -> None:
        """Let replicas go that were not proposed yet; those that were stay required through the proposal."""
        self.joining.difference_update(broker_ids)
        self._recompute()

    def propose(self, lagging: frozenset[int], now_ms: int) -> Proposal | None:
        """The change to ask for now, if any: without the lagging members, with the joining replicas."""
        if self.in_flight is not None or self.needs_read or now_ms < self._not_before_ms:
            return None
        wanted = ((self.local | self.joining) - lagging) | {self.self_id}
        if wanted == self.local:
            wanted = self._settling_set(lagging)
        if wanted == self.local:
            return None
        self.in_flight = Proposal(self._next_token, wanted, self.set_epoch)
        self._next_token += 1
        self._recompute()
        return self.in_flight

    def _settling_set(self, lagging: frozenset[int]) -> frozenset[int]:
        """The local set is the wanted one, but an attempt without a known outcome may require somebody for ever.

        Proposing the local set is refused as equal and moves nothing, so some other set has to be accepted first: one of the
        attempts if its members are well; else the local set without a member, who joins again with its next ack; else, with
        nobody to spare, the attempt itself.
        """
        widening = [members for members, _ in self._unknown if not members <= self.local]
        if not widening:
            return self.local
        for members in widening:
            if not members & lagging:
                return members
        others = self.local - {self.self_id}
        return self.local - {max(others)} if others else widening[0]

    # What the controller answers

    def accepted(self, token: int, members: Iterable[int], set_epoch: int) -> None:
        """The proposal was applied; `members` is the set that the controller now has."""
        self._answered(token)
        self.install(members, set_epoch)

    def refused(self, token: int, code: int, now_ms: int) -> None:
        """The proposal did nothing: its members need not stay for its sake."""
        assert code in REFUSALS, code
        proposal = self._answered(token)
        if proposal is None:
            return
        self._not_before_ms = now_ms + self._retry_ms
        if code in _MEMBER_REFUSALS:
            for broker_id in self.joining & proposal.members:
                self._barred_until_ms[broker_id] = now_ms + self._rejoin_delay_ms
            self.joining -= proposal.members
        else:
            self.needs_read = True
        self._recompute()

    def unknown(self, token: int, now_ms: int) -> None:
        """No answer, or one that proves nothing: the proposed members stay required (rule 3)."""
        proposal = self._answered(token)
        if proposal is None:
            return
        self.needs_read = True
        self._not_before_ms = now_ms + self._retry_ms
        if proposal.base_epoch >= self.set_epoch:
            self._unknown.add((proposal.members, proposal.base_epoch))
        self._recompute()

    def observed(self, members: Iterable[int], set_epoch: int) -> None:
        """A linearizable read (or a notification) of this master epoch shows this set."""
        if set_epoch >= self.set_epoch:
            self.needs_read = False
        self.install(members, set_epoch)

    def install(self, members: Iterable[int], set_epoch: int) -> None:
        """Take the controller's set if it is newer than the local one; proposals on an older base are decided by that."""
        if set_epoch <= self.set_epoch:
            return
        self.local = frozenset(members)
        self.set_epoch = monotonic(self.set_epoch, set_epoch, "the epoch of the sync-state set")
        self.joining -= self.local
        self._unknown = {(attempt, base) for attempt, base in self._unknown if base >= set_epoch}
        self._recompute()

    def _answered(self, token: int) -> Proposal | None:
        """The proposal in flight if this is its token; an answer that comes after its time-out finds nothing."""
        proposal = self.in_flight
        if proposal is None or proposal.token != token:
            return None
        self.in_flight = None
        self._recompute()
        return proposal

    def _recompute(self) -> None:
        required = set(self.local) | self.joining | {self.self_id}
        if self.in_flight is not None and self.in_flight.base_epoch >= self.set_epoch:
            required |= self.in_flight.members
        for members, _ in self._unknown:
            required |= members
        self.required = frozenset(required)
