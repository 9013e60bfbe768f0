"""What a broker's core is given: its names, its settings, and the machine and the clients around it."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from brokerd.delay.deliverer import DelaySettings
from brokerd.delay.levels import DEFAULT_DELAYS, Delays, code_rules
from brokerd.journal.journal import JournalSettings
from brokerd.loop.scheduler import Scheduler
from brokerd.native.library import Library
from brokerd.pop.settings import PopSettings
from brokerd.store.log.derive import CodeRules
from brokerd.store.settings import RetentionSettings, StoreSettings
from brokerd.tiers.mounting.group import MountedGroup
from brokerd.tiers.objects.interface import ObjectStore
from brokerd.tiers.settings import TierSettings
from brokerd.tiers.upload.uploader import Loop
from brokerd.timers.codes import CODE_RULES
from brokerd.timers.settings import TimerSettings
from brokerd.transactions.checking import Producers
from brokerd.transactions.settings import TransactionSettings
from remoting.disk import Disk
from remoting.settings import Live


def wall_ms() -> int:
    """The time of day of this machine."""
    return time.time_ns() // 1_000_000


def steady_ms() -> int:
    """Monotonic milliseconds of this machine."""
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """How clients name this broker. `store_host` is the packed address that records and message ids carry."""

    cluster: str
    broker_name: str
    store_host: bytes
    development: bool = False


class Tier(NamedTuple):
    """The object store in which expired messages are kept, and the loop that its requests run on; `mounted` is the group that
    this broker serves from it in the place of the group's own brokers."""

    objects: ObjectStore
    loop: Loop
    mounted: MountedGroup | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """The machine, or its twin: files, times, chance. `cpu_s` is the processor time that this process has used; with the library
    loops over messages run in C. `random_bits` are for what nobody may guess. `other_clocks_ms` is what clocks of other machines
    say now, None where none tells it."""

    disk: Disk
    scheduler: Scheduler
    wall_ms: Callable[[], int]
    rng: random.Random
    cpu_s: Callable[[], float] = lambda: 0.0
    library: Library | None = None
    random_bits: Callable[[int], int] = secrets.randbits
    other_clocks_ms: Callable[[], Sequence[int] | None] = lambda: None
    tier: Tier | None = None


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """The settings of the store and of what lives on its log, and for how long it keeps a file. The store knows nothing of the
    delay levels and their `delays`."""

    store: StoreSettings
    journal: JournalSettings = field(default_factory=JournalSettings)
    pop: PopSettings = field(default_factory=PopSettings)
    transactions: Live[TransactionSettings] = field(default_factory=lambda: Live(TransactionSettings()))
    delay: DelaySettings = field(default_factory=DelaySettings)
    delays: Delays = DEFAULT_DELAYS
    timers: Live[TimerSettings] = field(default_factory=lambda: Live(TimerSettings()))
    retention: Live[RetentionSettings] = field(default_factory=lambda: Live(RetentionSettings()))
    tiers: Live[TierSettings] = field(default_factory=lambda: Live(TierSettings()))

    @property
    def code_rules(self) -> CodeRules:
        """For the store: what makes the codes of entries in the topics of those who wait."""
        return {**code_rules(self.delays), **CODE_RULES}


class Clients(Producers, Protocol):
    """Who is connected."""

    def is_alive(self, client_id: str) -> bool:
        """Whether a consumer that leases messages is there."""
