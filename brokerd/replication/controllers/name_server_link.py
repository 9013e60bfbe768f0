"""Tells every name server (the controllers are) who this broker is: at a change of role or topics, on each new connection, and
every few seconds.

A master registers as id 0 with all topics, a replica under its own id without any; a broker without a confirmed role is not
registered. The data version carries the master epoch first, so that an old master's registration loses against the new one's
whatever their clocks say; it stays the same until role or topics change, so that a name server keeps what an administrator
changed there (a write permission taken).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import orjson

from brokerd.metadata.configs import TopicConfig
from brokerd.metadata.service import topic_json
from brokerd.replication.controllers.controller_link import ControllerLink
from brokerd.replication.controllers.session import BrokerNames
from brokerd.replication.roles.effects import Role
from remoting import codes
from remoting.checksum import crc32
from remoting.errors import LogboomError
from remoting.frame import Command

log = logging.getLogger(__name__)

MASTER_ROLE_ID = 0
_TIMEOUT_MS = 3000
_KNOWN_TIMEOUT_MS = 1000  # what one who waits for name servers waits for a silent one


class NameServerLink:
    """One broker's registration. All methods are called on the loop."""

    def __init__(
        self,
        link: ControllerLink,
        names: BrokerNames,
        topics: Callable[[], Mapping[str, TopicConfig]],
        interval_ms: int,
        wall_ms: Callable[[], int],
        *,
        acting_master: bool = False,
    ) -> None:
        """`acting_master`: a replica of a group with fixed roles names its topics too, to stand in while no master does."""
        self._acting_master = acting_master
        self._link = link
        self._names = names
        self._topics = topics
        self._interval_ms = interval_ms
        self._wall_ms = wall_ms
        self._role_id: int | None = None
        self._master_epoch = 0
        self._changes = 0
        self._changed_wall_ms = wall_ms()
        self._due_ms = 0
        # Told the sentence when a name server refuses this broker because another process has its identity
        self.twin_listeners: list[Callable[[str], None]] = []
        self._waiting: list[Callable[[], None]] = []  # for the next round
        self._round: list[Callable[[], None]] = []
        self._unanswered = 0

    def role_changed(self, role: Role, master_epoch: int, broker_id: int | None, now_ms: int) -> None:
        """Register in the new role at once; without one, leave the routes."""
        before = self._role_id
        self._master_epoch = master_epoch
        self._changed_wall_ms = self._wall_ms()
        if role is Role.MASTER:
            self._role_id = MASTER_ROLE_ID
        elif role is Role.REPLICA:
            self._role_id = broker_id
        else:
            self._role_id = None
        if self._role_id is not None:
            self.register(now_ms)
        elif before is not None:
            self._unregister(before)

    def topics_changed(self, now_ms: int) -> None:
        """Register soon (changes of one moment together)."""
        self._changes += 1
        self._changed_wall_ms = self._wall_ms()
        self._due_ms = min(self._due_ms, now_ms)

    def when_known(self, done: Callable[[], None]) -> None:
        """Call `done` when all name servers know the topics as they are now, or cannot be asked, or are silent for a second.

        Who made a topic is answered then: his clients ask a name server next, and one that is told "unknown" asks again after
        half a minute only. Those who wait at one time share a registration.
        """
        self._waiting.append(done)
        if not self._round:
            self._next_round()

    def _next_round(self) -> None:
        self._round, self._waiting = self._waiting, []
        addresses = self._link.name_servers if self._role_id is not None else ()
        if not self._round or not addresses:
            self._end_round()
            return
        self._unanswered = len(addresses)
        ext, body = self.registration()
        for address in addresses:
            self._register_with(address, ext, body, _KNOWN_TIMEOUT_MS, self._answered)

    def _answered(self) -> None:
        self._unanswered -= 1
        if not self._unanswered:
            self._end_round()
            if self._waiting and not self._round:
                self._next_round()

    def _end_round(self) -> None:
        known, self._round = self._round, []
        for done in known:
            done()

    def is_due(self, now_ms: int) -> bool:
        """Whether a tick would register."""
        return now_ms >= self._due_ms

    def tick(self, now_ms: int) -> None:
        if self.is_due(now_ms):
            self.register(now_ms)

    def register(self, now_ms: int) -> None:
        """Register with all name servers now."""
        self._due_ms = now_ms + self._interval_ms
        if self._role_id is None:
            return
        ext, body = self.registration()
        for address in self._link.name_servers:
            self._register_with(address, ext, body)

    def connected(self, address: str) -> None:
        """A name server came (back): it knows nothing of this broker."""
        if self._role_id is not None and address in self._link.name_servers:
            self._register_with(address, *self.registration())

    def stop(self) -> None:
        """Leave the routes."""
        if self._role_id is not None:
            self._unregister(self._role_id)
            self._role_id = None

    def registration(self) -> tuple[dict[str, str], bytes]:
        """Header fields and body of a registration in the present role."""
        is_master = self._role_id == MASTER_ROLE_ID
        speaks = is_master or self._acting_master
        topics = self._topics() if speaks else {}
        wrapper = {
            "topicConfigTable": {name: topic_json(config) for name, config in topics.items()},
            "dataVersion": {
                "stateVersion": self._master_epoch,
                "timestamp": self._changed_wall_ms,
                "counter": self._changes,
            },
        }
        body = orjson.dumps({"topicConfigSerializeWrapper": wrapper, "filterServerList": []})
        ext = self._identity(self._role_id) | {
            "haServerAddr": self._names.ha_address,
            "grpcAddress": self._names.grpc_address,
            "compressed": "false",
            "bodyCrc32": str(crc32(body) & 0x7FFFFFFF),
            "complete": "true" if speaks else "false",
        }
        if self._names.incarnation:
            ext["incarnation"] = str(self._names.incarnation)
        if self._acting_master:
            ext["enableActingMaster"] = "true"
        return ext, body

    def _register_with(
        self,
        address: str,
        ext: Mapping[str, str],
        body: bytes,
        timeout_ms: int = _TIMEOUT_MS,
        then: Callable[[], None] = lambda: None,
    ) -> None:
        def answered(result: Command | LogboomError) -> None:
            # A controller of the original does not know the request: it is no name server.
            if isinstance(result, Command) and result.code not in (codes.SUCCESS, codes.REQUEST_CODE_NOT_SUPPORTED):
                reason = result.remark or f"code {result.code}"
                log.warning("name server %s refuses the registration: %s", address, reason)
                if "twinAddress" in result.ext:
                    for listener in self.twin_listeners:
                        listener(reason)
            then()

        self._link.request(address, codes.REGISTER_BROKER, ext, body, timeout_ms, answered)

    def _unregister(self, role_id: int) -> None:
        for address in self._link.name_servers:
            self._link.request(
                address, codes.UNREGISTER_BROKER, self._identity(role_id), b"", _TIMEOUT_MS, lambda _: None
            )

    def _identity(self, role_id: int | None) -> dict[str, str]:
        return {
            "brokerName": self._names.broker_name,
            "brokerAddr": self._names.address,
            "clusterName": self._names.cluster,
            "brokerId": str(role_id),
        }
