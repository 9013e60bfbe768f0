"""What BROKER_STATE tells of topics and their queues; made again only for those of which something changed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from brokerd.metadata import local_policy, tier_policy
from brokerd.metadata.configs import TopicConfig
from brokerd.processors.offsets.consumption import Consumption
from remoting.facts.broker_state import QueueState, TopicState
from remoting.facts.codec import encode_item
from remoting.facts.tier_state import TieredQueueState

_UNCHANGED_TIMES: Final = 14

TieredQueue = Callable[[str, int], TieredQueueState | None]


@dataclass(slots=True)
class _Known:
    """`ends` are where the queues begin and end; what lies between is the same in the same master epoch. `tiers` say what of it
    is where."""

    config: TopicConfig
    master_epoch: int
    ends: tuple[tuple[int, int], ...]
    tiers: tuple[TieredQueueState | None, ...]
    state: TopicState
    encoded: bytes | None = None


class TopicStates:
    """`begins_recently(topic, queue)` is as `StartOffsets` says; `tiered_queue` is None without a tier."""

    def __init__(
        self,
        consumption: Consumption,
        begins_recently: Callable[[str, int], bool],
        tiered_queue: TieredQueue | None = None,
    ) -> None:
        self._consumption = consumption
        self._begins_recently = begins_recently
        self._tiered_queue = tiered_queue
        self._known: dict[str, _Known] = {}
        self._all: Sequence[TopicState] = ()  # of all topics, as they were at `_moment`
        self._moment: object = None
        self._left = 0  # how often that is still told without a look

    def unchanged(self, moment: object) -> Sequence[TopicState] | None:
        """What `remember` was told last, if that was at this moment of the log; None when all topics have to be looked at. They
        are now and then in any case: that a queue begins recently ends by itself."""
        if self._moment != moment or self._left == 0:
            return None
        self._left -= 1
        return self._all

    def remember(self, states: Sequence[TopicState], moment: object) -> None:
        """All topics were looked at, beginning at this moment. What a tier has changes without the log."""
        if self._tiered_queue is None:
            self._all, self._moment, self._left = states, moment, _UNCHANGED_TIMES

    def of(self, config: TopicConfig, master_epoch: int) -> TopicState:
        """The topic as it is now."""
        name, ranges = config.name, self._consumption.ranges
        ends = tuple(
            (ranges.min_offset(name, queue_id), ranges.max_offset(name, queue_id))
            for queue_id in range(config.read_queue_nums)
        )
        tiers: tuple[TieredQueueState | None, ...] = ()
        if self._tiered_queue is not None:
            tiers = tuple(self._tiered_queue(name, queue_id) for queue_id in range(config.read_queue_nums))
        known = self._known.get(name)
        if (
            known is None
            or known.config is not config
            or known.master_epoch != master_epoch
            or known.ends != ends
            or known.tiers != tiers
            or not self._is_as_recent(known.state)
        ):
            state = self._look(config, ends, tiers)
            known = self._known[name] = _Known(config, master_epoch, ends, tiers, state)
        return known.state

    def encoded(self, state: TopicState) -> bytes:
        """What `of` gave, as an item of the document."""
        known = self._known.get(state.name)
        if known is None or known.state is not state:
            return encode_item(state)
        if known.encoded is None:
            known.encoded = encode_item(state)
        return known.encoded

    def forget_all_but(self, names: Collection[str]) -> None:
        """These are all topics that there are."""
        if len(self._known) > len(names):
            self._known = {name: known for name, known in self._known.items() if name in names}

    # ---- inside

    def _look(
        self,
        config: TopicConfig,
        ends: tuple[tuple[int, int], ...],
        tiers: tuple[TieredQueueState | None, ...],
    ) -> TopicState:
        name, has_tier = config.name, self._tiered_queue is not None
        hours = tier_policy.reserved_hours(config.attributes)
        local_hours = local_policy.reserved_hours(config.attributes)
        return TopicState(
            name=name,
            type=config.message_type,
            perm=config.perm,
            read_queues=config.read_queue_nums,
            write_queues=config.write_queue_nums,
            system=self._consumption.metadata.names.is_system_topic(name),
            local_reserved_hours=local_hours if local_hours >= 0 else None,
            tiered=tier_policy.is_kept(name, config.attributes) if has_tier else None,
            tier_reserved_hours=hours if hours >= 0 else None,
            tier_archived=tier_policy.says_archived(config.attributes),
            tier_exported=tier_policy.is_exported(config.attributes),
            queues=tuple(
                QueueState(
                    queue_id=queue_id,
                    min_offset=low,
                    max_offset=high,
                    last_store_ms=self._consumption.ranges.store_timestamp(name, queue_id, high - 1) if high else -1,
                    begins_recently=high == 0 or self._begins_recently(name, queue_id),
                    tier=tiers[queue_id] if has_tier else None,
                )
                for queue_id, (low, high) in enumerate(ends)
            ),
        )

    def _is_as_recent(self, state: TopicState) -> bool:
        """A queue that begins recently does not for ever, and one that does not never does again."""
        return all(
            not queue.begins_recently or queue.max_offset == 0 or self._begins_recently(state.name, queue.queue_id)
            for queue in state.queues
        )
