"""The replication of one broker, as the broker's assembly uses it.

    replica = Replica(settings, Surroundings(names, controllers, disk, topics), replicated_log, confirm_offset=...)
    replica.add_role_listener(...); replica.add_confirm_listener(...); replica.on_failure(...)
    server handlers |= replica.handlers()
    await replica.start(host, port)         after the remoting server listens: from now on others are told where we are
    replica.on_flushed()                    after every flush of the log, on the loop
    replica.on_appended(end), replica.wait(position, callback)
    await replica.stop()

Everything happens on the loop's thread. The parts: `driver` (which drives the pure `role_machine`), `hub` and `listener` (sockets
between brokers), a session with its `controller_link`, and `name_server_link`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import token_bytes

from brokerd.metadata.configs import TopicConfig
from brokerd.replication.calm import TICK_MS, calm_tick_ms
from brokerd.replication.controllers.controller_link import ControllerLink
from brokerd.replication.controllers.controller_session import ControllerSession
from brokerd.replication.controllers.fixed_session import FixedSession
from brokerd.replication.controllers.identity import IdentityFiles, Lives, Registration, next_incarnation
from brokerd.replication.controllers.name_server_link import NameServerLink
from brokerd.replication.controllers.request_fields import Speaker
from brokerd.replication.controllers.session import BrokerNames, Session
from brokerd.replication.controllers.wishes import Wishes
from brokerd.replication.epochs.epoch_file import EpochFile
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.epochs.log_lineage import LogLineage
from brokerd.replication.facts import ReplicaFacts, driver_facts
from brokerd.replication.kept_files import KeptFiles
from brokerd.replication.log import ReplicatedLog
from brokerd.replication.requests import ReplicationRequests
from brokerd.replication.required_set.quorum import weaknesses
from brokerd.replication.roles.driver import ReplicationDriver, Seams
from brokerd.replication.roles.effects import Role
from brokerd.replication.roles.followership import CopyStage
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.sockets.hub import Hub
from brokerd.replication.sockets.listener import listen
from brokerd.replication.wire.proof import NONCE_BYTES, Credentials
from brokerd.store.put_status import PutStatus
from remoting.disk import Disk
from remoting.errors import CorruptedFile
from remoting.invariants import what_broke
from remoting.transport.beats import Beat, on_next_beat
from remoting.transport.connection import Handler
from remoting.transport.identity import NOBODY, Identity
from remoting.transport.tls import TlsServer

log = logging.getLogger(__name__)

_MEND_MS = 10_000  # how often the small files are looked at
_DRAIN_S = 0.5
_LOOK_S = 0.01


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the replication of a broker lives among.

    `disk` is the broker's data directory; `topics` the present table, for the name servers; `secrets` what brokers of one cluster
    know one another by: this one proves itself with the first, and believes all; with none it stays alone. It dials with
    `identity`, and answers replicas under `tls`. `has_room` tells whether the disk takes messages (None: nobody knows).
    """

    names: BrokerNames
    controllers: Sequence[str]
    disk: Disk
    topics: Callable[[], Mapping[str, TopicConfig]]
    secrets: Sequence[bytes] = ()
    wall_ms: Callable[[], int] = _wall_ms
    identity: Identity = NOBODY
    tls: TlsServer | None = None
    has_room: Callable[[], bool] | None = None


def _nobody_asks() -> None:
    """Of a log that lost nothing."""


@dataclass(frozen=True, slots=True)
class Tail:
    """What a start found of the log's end. `kept` is false when it may have left less than was acknowledged, and `confirmed` is
    then how far the log was known to be confirmed (-1: nothing says so); `judged` is called when that matters no more."""

    kept: bool = True
    confirmed: int = -1
    judged: Callable[[], None] = _nobody_asks


KEPT = Tail()


class Replica:
    """The parts of replication put together, and what the rest of the broker asks of them."""

    def __init__(
        self,
        settings: ReplicationSettings,
        around: Surroundings,
        replicated_log: ReplicatedLog,
        *,
        confirm_offset: int,
        tail: Tail = KEPT,
    ) -> None:
        """`confirm_offset` is the last one known to be on disk; `tail` is what recovery left of the log.

        Raises SettingsError or CorruptedFile when the directory's files do not fit.
        """
        self._loop = asyncio.get_running_loop()
        self._settings = settings
        self._tls = around.tls
        self._kept = kept = KeptFiles(around.disk)
        self._mend_at_ms = self._now_ms() + _MEND_MS
        incarnation = next_incarnation(kept)
        around = replace(around, names=replace(around.names, incarnation=incarnation))
        wishes = Wishes()

        def make_driver(hub: Hub) -> ReplicationDriver:
            return ReplicationDriver(
                settings,
                Seams(replicated_log, EpochFile(kept), hub, wishes),
                _credentials(around, incarnation),
                confirm_offset=confirm_offset,
                now_ms=self._now_ms(),
            )

        self._hub = Hub(make_driver, self._now_ms, around.identity.tls)
        self._driver = driver = self._hub.driver
        self._session: Session
        if settings.roles == "fixed":
            self._session = FixedSession(
                settings,
                around.names,
                around.controllers,
                driver,
                LogLineage(kept),
                driver.machine.highest_epoch,
            )
            if settings.broker_id == 0 and tail.confirmed > replicated_log.end_offset:
                raise CorruptedFile(
                    f"this master's log ends at {replicated_log.end_offset}, and was confirmed up to {tail.confirmed}; nobody "
                    "else is elected: make a replica that has everything the master; or, when no other copy exists, "
                    "start once with --set store.truncate_damaged_log=true"
                )
            tail.judged()  # the master's log is the right one
        else:
            files = IdentityFiles(kept, around.names.cluster, around.names.broker_name)
            registration = Registration(files, around.names.address, around.wall_ms())
            speaker = Speaker(
                around.names,
                registration,
                incarnation,
                driver.machine,
                tail.kept,
                tail.confirmed,
                [tail.judged],
                around.has_room,
                Lives(kept, incarnation),
            )
            self._session = ControllerSession(settings, speaker, around.controllers, driver, self._now_ms())
        self._stood_in = False  # what the name servers last heard
        self._link = ControllerLink(settings, self._session, wishes, self._hub.tell, around.wall_ms, around.identity)
        self._name_servers = NameServerLink(
            self._link,
            around.names,
            around.topics,
            settings.name_server_register_ms,
            around.wall_ms,
            acting_master=settings.roles == "fixed" and settings.acting_master,
        )
        self._link.connected_listeners.append(self._name_servers.connected)
        self._link.on_answered = self._rest_again
        if settings.roles == "fixed":  # elsewhere the controllers refuse such a process before it has a role
            self._name_servers.twin_listeners.append(self._end_for_twin)
        self._requests = ReplicationRequests(self._hub, self._session, self._link, around.names, around.wall_ms)
        self._server: asyncio.Server | None = None
        self._ticker: Beat | None = None
        self._tick_ms = TICK_MS  # how long the tick that comes was planned to be after the one before
        self._ticked_ms = 0
        self._look: asyncio.TimerHandle | None = None  # whether the calm is over, for all that is appended till then
        self.add_role_listener = driver.role_listeners.append
        self.add_hand_over_listener = driver.hand_over_listeners.append
        self.add_confirm_listener = driver.confirm_listeners.append
        self.add_meaning_listener = driver.meaning_listeners.append
        self.on_failure = driver.failure_listeners.append
        self.add_damage_listener = driver.damage_listeners.append
        # What the fast path calls, without a layer in between
        self._on_appended = driver.on_appended
        self._wait = driver.wait

    # Start and end

    async def start(self, host: str, port: int) -> None:
        """Listen for replicas and begin to talk to the controllers. Raises SettingsError when the address is taken."""
        for weakness in weaknesses(self._settings):
            log.warning("weaker than the default: %s", weakness)
        self._driver.role_listeners.append(self._tell_name_servers)
        self._server = await listen(host, port, self._hub, self._tls)
        if self._settings.classic_master:
            self._driver.follow_classic(self._now_ms())
        else:
            self._link.start()
        self._tick()

    async def stop(self) -> None:
        """Leave the routes, let what was sent be acknowledged, leave the role, fail who still waits, close every connection."""
        self._name_servers.stop()
        await self._drain()
        self._hub.on_event = None
        if self._look is not None:
            self._look.cancel()
        if self._ticker is not None:
            self._ticker.cancel()
            self._ticker = None
        self._driver.stop("this broker stops", self._now_ms())
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
        await self._hub.close_all()
        await self._link.close()

    async def _drain(self) -> None:
        """Take nothing new, and give the replicas a moment to acknowledge what producers wait for."""
        self._driver.drain()
        if not self._driver.is_master or not len(self._driver.acks):
            return
        answered = asyncio.Event()
        self._driver.wait(self._driver.machine.log.end_offset, lambda status: answered.set(), self._now_ms())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_S):
                await answered.wait()

    def handlers(self) -> dict[int, Handler]:
        """For the broker's remoting server: what controllers and tools ask about replication."""
        return self._requests.handlers()

    # For senders and readers

    @property
    def role(self) -> Role:
        return self._driver.machine.role

    @property
    def master_epoch(self) -> int:
        """The epoch of the present role; 0 before the first."""
        return self._driver.machine.master_epoch

    @property
    def broker_id(self) -> int | None:
        """The persistent id; None until a controller assigned it."""
        return self._driver.machine.broker_id

    @property
    def is_master(self) -> bool:
        return self._driver.is_master

    @property
    def is_handing_over(self) -> bool:
        """This master is about to be replaced as planned, and refuses what is new; in a moment it is known by whom."""
        return self._driver.is_handing_over

    @property
    def serves_clients(self) -> bool:
        """Whether clients' calls are carried out here: by the master that is not about to be replaced."""
        return self.is_master and not self.is_handing_over

    @property
    def is_connected_to_master(self) -> bool:
        """Whether this replica copies its master's log right now: the master is there, and clients can reach it too."""
        followership = self._driver.machine.followership
        return followership is not None and followership.stage is CopyStage.TRANSFER

    @property
    def is_in_sync(self) -> bool:
        """Whether this is the master or stands in for it, or copies its log and is in the sync-state set, as controllers say."""
        if self.is_master or self._session.acts_as_master:
            return True
        followership = self._driver.machine.followership
        return followership is not None and followership.stage is CopyStage.TRANSFER and followership.in_set

    @property
    def is_left_alone(self) -> bool:
        """Whether this replica's master is away, or of a kind that has no address here, and nobody elects another one."""
        if self.is_master:
            return False
        if self._settings.classic_master:
            return True
        return self._settings.roles == "fixed" and not self.is_connected_to_master

    @property
    def accepts_messages(self) -> bool:
        return self._driver.accepts_messages

    @property
    def acknowledges_alone(self) -> bool:
        """See `ReplicationDriver`."""
        return self._driver.acknowledges_alone

    @property
    def acknowledges_durable(self) -> bool:
        """See `ReplicationDriver`."""
        return self._driver.acknowledges_durable

    @property
    def refusal(self) -> PutStatus:
        return self._driver.refusal

    @property
    def confirm_offset(self) -> int:
        return self._driver.machine.confirm_offset

    @property
    def epochs(self) -> Sequence[EpochEntry]:
        """Which master epoch wrote which part of this broker's log, oldest first."""
        return self._driver.machine.epochs.entries

    def other_clocks_ms(self) -> list[int]:
        """What clocks of other machines say now."""
        return self._session.other_clocks_ms(self._now_ms())

    def witnesses_ms(self) -> list[int] | None:
        """The same; None where no other machine is asked for the time."""
        return self.other_clocks_ms() if self._session.has_other_clocks else None

    def held_offset(self) -> int | None:
        """From where on connected replicas of the group still need the log; None without any."""
        mastership = self._driver.machine.mastership
        return mastership.held_offset() if mastership is not None else None

    def expected_offset(self) -> int | None:
        """From where on replicas of the group that are away will need the log; None without any that are waited for."""
        mastership = self._driver.machine.mastership
        return mastership.expected_offset if mastership is not None else None

    @property
    def master_address(self) -> str:
        """The remoting address of the group's master, "" when none is known."""
        return self._of_master("master_address")

    @property
    def master_grpc_address(self) -> str:
        return self._of_master("master_grpc_address")

    def on_appended(self, end_offset: int) -> None:
        """The master appended: send it to the replicas. Once per read event's messages; the caller asks for the flush."""
        try:
            self._on_appended(end_offset, int(self._loop.time() * 1000))
            if self._look is None and self._hub.on_event is not None:
                self._look = self._loop.call_later(_LOOK_S, self._look_at_appends)
        except Exception as error:
            self._driver.break_down(f"replication broke: {what_broke(error)}", self._now_ms())
            raise

    def wait(self, position: int, callback: Callable[[PutStatus], None]) -> None:
        """Call back once, when everything below `position` is acknowledged or the wait is over."""
        self._wait(position, callback, int(self._loop.time() * 1000))

    def on_flushed(self) -> None:
        """A flush of the log ended."""
        self._hub.tell(self._driver.on_flushed)

    def reconfigure(self, settings: ReplicationSettings) -> None:
        """An administrator changed settings: use these from now on."""
        self._settings = settings
        self._session.reconfigure(settings)
        self._hub.tell(self._driver.reconfigure, settings)
        for weakness in weaknesses(settings):
            log.warning("weaker than the default: %s", weakness)

    def topics_changed(self) -> None:
        """Tell the name servers soon."""
        self._name_servers.topics_changed(self._now_ms())
        if self._hub.on_event is not None:
            self._hub.on_event()

    def when_topics_known(self, done: Callable[[], None]) -> None:
        """Call `done` when the name servers know the topics as they are now; see `NameServerLink.when_known`."""
        if self._settings.classic_master:
            done()
        else:
            self._name_servers.when_known(done)

    def count_also(self, waiting: Callable[[], tuple[int, int]]) -> None:
        """Sends wait to be acknowledged elsewhere, too: how many groups of messages, and the first of them for how many ms."""
        self._driver.waiting_elsewhere = waiting

    def state(self) -> ReplicaFacts:
        """The facts for a person."""
        return replace(driver_facts(self._driver, self._now_ms()), controllers_error=self._session.last_error)

    # Inside

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _tick(self) -> None:
        self._hub.on_event = None
        if self._hub.tell(self._tick_parts):  # without its clock the broker must not go on
            calm_ms = calm_tick_ms(self._settings)
            if self._is_calm(calm_ms):
                self._rest(calm_ms)
            else:
                self._ticker = self._next_tick(TICK_MS)

    def _rest(self, calm_ms: int) -> None:
        self._ticker = self._next_tick(calm_ms)
        self._hub.on_event = self._look_at_calm

    def _rest_again(self) -> None:
        """What was asked of the controllers is answered: if nothing else is under way, the next tick may be far again."""
        calm_ms = calm_tick_ms(self._settings)
        if self._ticker is not None and self._hub.on_event is None and self._is_calm(calm_ms):
            self._ticker.cancel()
            self._rest(calm_ms)

    def _next_tick(self, period_ms: int) -> Beat:
        ticker = on_next_beat(period_ms, self._tick)
        self._tick_ms = max(TICK_MS, int(ticker.at_s * 1000) - self._ticked_ms)
        return ticker

    def _is_calm(self, for_ms: int) -> bool:
        """Whether a tick has nothing to do for so long, and nobody's silence is noticed later for it."""
        return (
            for_ms > TICK_MS
            and self._session.is_calm
            and self._driver.is_calm(self._now_ms(), for_ms + TICK_MS)
            and not self._name_servers.is_due(self._now_ms())
        )

    def _look_at_calm(self) -> None:
        """Something happened while the next tick is far: with more to come of it, the tick comes soon."""
        if self._ticker is not None and not self._is_calm(calm_tick_ms(self._settings)):
            self._hub.on_event = None
            self._ticker.cancel()
            self._ticker = self._next_tick(TICK_MS)

    def _look_at_appends(self) -> None:
        """Once for all of a moment: where a message is acknowledged at once, the calm is not over behind any of them."""
        self._look = None
        if self._hub.on_event is not None:
            self._hub.on_event()

    def _tick_parts(self, now_ms: int) -> None:
        if now_ms >= self._mend_at_ms:
            self._mend_at_ms = now_ms + _MEND_MS
            self._kept.mend()
        self._driver.tick(now_ms, self._tick_ms)
        self._ticked_ms = now_ms
        if not self._settings.classic_master:
            self._link.step()
            if self._session.acts_as_master != self._stood_in:
                self._stood_in = self._session.acts_as_master
                self._name_servers.register(now_ms)
            self._name_servers.tick(now_ms)
        self._requests.tick(now_ms)

    def _tell_name_servers(self, role: Role, master_epoch: int) -> None:
        self._name_servers.role_changed(role, master_epoch, self.broker_id, self._now_ms())
        self._link.step_soon()  # heartbeats and views should not wait for the next tick either

    def _end_for_twin(self, reason: str) -> None:
        """Another process lives under this broker's identity, and was there first."""
        self._hub.tell(self._driver.break_down, reason)

    def _of_master(self, field: str) -> str:
        view = self._driver.machine.view
        return getattr(view, field) if view is not None and view.master_id is not None else ""


def _credentials(around: Surroundings, incarnation: int) -> Credentials:
    group = f"{around.names.cluster}#{around.names.broker_name}".encode()
    first, *others = around.secrets or (None,)
    return Credentials(first, group, incarnation, lambda: token_bytes(NONCE_BYTES), tuple(filter(None, others)))
