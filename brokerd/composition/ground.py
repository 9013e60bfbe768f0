"""What a broker's core stands on: who it is, its settings, the machine, and what its log says, which is made before the store is.

The store's reads go by some of that, and its residents fill it from the log once the store is loaded; so both get it here.
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerd.composition.environment import BrokerIdentity, CoreSettings, Environment
from brokerd.metadata.local_policy import TopicWishes
from brokerd.metadata.tables import MetadataTables
from brokerd.store.log.record_checks import astray_finder
from brokerd.tiers.in_log import TierInLog, TierReads, tier_reads
from brokerd.timers.in_log import TimersInLog


@dataclass(frozen=True, slots=True)
class Ground:
    """For one store and the core over it. Who opens the store again begins with a new one."""

    identity: BrokerIdentity
    settings: CoreSettings
    environment: Environment
    metadata: MetadataTables
    timers: TimersInLog
    tier: TierReads
    wishes: TopicWishes


def make_ground(identity: BrokerIdentity, settings: CoreSettings, environment: Environment) -> Ground:
    """Nothing is known of the log yet."""
    metadata = MetadataTables()
    tier = environment.tier
    mounted = tier.mounted.contents if tier is not None and tier.mounted is not None else None
    in_log = TierInLog(lambda topic: metadata.topics_deleted_at.get(topic, -1), mounted)
    reads = TierReads(in_log)
    if tier is not None:
        first_astray = astray_finder(environment.library)
        reads = tier_reads(in_log, tier.objects, tier.loop, settings.tiers, first_astray)
    return Ground(identity, settings, environment, metadata, TimersInLog(), reads, TopicWishes(metadata))
