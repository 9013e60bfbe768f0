"""What a broker says to its controllers, and what it makes of the answers (pure).

One request to the leader at a time, the most urgent first: registration steps, a change of the sync-state set, an election, the
group's view, its members. Heartbeats go to every controller, one-way; discovery asks every controller who leads, and each answer
names all controllers, so that one that was added later is heard of, too. Whoever answers "not the leader", or not at all, is the
leader no more until discovery says so again. A leader that owes an answer may be slow, or frozen: meanwhile the others are asked,
and one that says that it leads itself is believed before the slow one's time is up.

A request is sent once. If its outcome is not known (no answer, connection lost) that is what the driver is told: it must not
be sent again behind its back, because a later refusal of the copy would prove nothing about the original.

`now_ms` and wall time come in; requests go out through `take_requests`; the shell answers each with `answered` or `failed`.
Nothing here decides about roles: views go to the driver.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import orjson

from brokerd.replication.calm import EARLY_MS
from brokerd.replication.controllers import answers
from brokerd.replication.controllers.identity import Step
from brokerd.replication.controllers.request_fields import Speaker
from brokerd.replication.controllers.session import Session, SessionRequest
from brokerd.replication.required_set.sync_state import Proposal
from brokerd.replication.roles.driver import ReplicationDriver
from brokerd.replication.roles.effects import Ask, RoleView
from brokerd.replication.settings import ReplicationSettings
from remoting import codes
from remoting.disk import Bytes
from remoting.errors import ProtocolError

log = logging.getLogger(__name__)

_DISCOVERY_MS = 100
_STEP_RETRY_MS = 250
_ELECTION_RETRY_MS = 200
_SYNC_RETRY_MS = 50
_MEMBERS_POLL_MS = 5000
_CONTROLLERS_POLL_MS = 2000  # how often the leader is asked who the controllers are
_PATIENCE_MS = 100  # how long a leader may owe an answer before another one is looked for
_MAX_LEARNED = 64
_RETELL_MS = 3000  # how often a member of the set says again that it may lack a part of the log


class ControllerSession(Session):
    """One broker's session with its controllers."""

    def __init__(
        self,
        settings: ReplicationSettings,
        speaker: Speaker,
        addresses: Sequence[str],
        driver: ReplicationDriver,
        now_ms: int,
    ) -> None:
        super().__init__(settings, speaker.names, driver)
        self.registration = speaker.registration
        self.leader: str | None = None
        self._speaker = speaker
        self.addresses = self._given = tuple(addresses)  # the given controllers; they may name more
        self._pending: SessionRequest | None = None
        self._pending_proposal: Proposal | None = None
        self._discovering: dict[int, str] = {}  # requests of who leads, and who was asked
        self._discover_at_ms = now_ms
        self._controllers_at_ms = now_ms
        self._heartbeat_at_ms = now_ms
        self._idle_ms = now_ms  # when no request was owed an answer
        self._step_at_ms = now_ms
        self._elect_at_ms = now_ms
        self._sync_at_ms = now_ms
        self._poll_at_ms = now_ms
        self._members_at_ms = now_ms + _STEP_RETRY_MS
        self._retell_at_ms = now_ms
        self._told_of_epoch = -1  # the master epoch in which the controllers were last told of a lost tail
        self._proposal: tuple[Proposal, int] | None = None
        self._pace_told = speaker.disk_pace
        self._twin_told = ""  # what was logged about another process with this identity
        if self.registration.broker_id is not None:
            driver.identified(self.registration.broker_id)

    @property
    def name_servers(self) -> tuple[str, ...]:
        """All controllers are."""
        return self.addresses

    @property
    def clocks(self) -> Sequence[str]:
        """All controllers tell it."""
        return self.addresses

    @property
    def is_calm(self) -> bool:
        return (
            self.leader is not None
            and self._pending is None
            and self._proposal is None
            and not self._asked
            and self.registration.step is Step.REGISTERED
            and self._speaker.tail_kept
        )

    def propose(self, proposal: Proposal, master_epoch: int) -> None:
        """Ask for a change of the set. One that was not sent yet belongs to an ended mastership: nobody waits for it."""
        self._proposal = (proposal, master_epoch)

    # Events

    def tick(self, now_ms: int, wall_ms: int) -> None:
        if now_ms + EARLY_MS >= self._heartbeat_at_ms or self._speaker.disk_pace is not self._pace_told:
            self._pace_told = self._speaker.disk_pace
            self._heartbeat_at_ms = now_ms + self._settings.controller_heartbeat_ms
            self._heartbeat(*self.addresses)
        if self.leader is None:
            if now_ms >= self._discover_at_ms:
                self._discover(now_ms)
            return
        if now_ms >= self._controllers_at_ms:
            self._ask_who_leads((self.leader,), now_ms)
        if self._pending is None:
            self._idle_ms = now_ms
            self._ask(self.leader, now_ms, wall_ms)
        elif now_ms - self._idle_ms >= _PATIENCE_MS and now_ms >= self._discover_at_ms:
            self._discover(now_ms)

    def connected(self, address: str, now_ms: int) -> None:
        """A connection to a controller stands: let it hear from us before anybody asks it whether we live."""
        self._heartbeat(address)
        if self.leader is None:
            self._discover_at_ms = now_ms

    def disconnected(self, address: str, now_ms: int) -> None:
        if address == self.leader:
            self._lose_leader(now_ms)

    def answered(self, token: int, code: int, ext: Mapping[str, str], body: Bytes, now_ms: int) -> None:
        if (address := self._discovering.pop(token, None)) is not None:
            if (wall_ms := answers.clock_ms(ext)) is not None:
                self._clocks[address] = (wall_ms, now_ms)
            self._discovered(code, ext, now_ms)
            return
        request = self._take_pending(token)
        if request is None:
            return
        if code == codes.CONTROLLER_NOT_LEADER:
            self._lose_leader(now_ms)
        try:
            self._digest(request, code, ext, body, now_ms)
        except (ProtocolError, ValueError, KeyError, TypeError, AttributeError) as error:
            self.last_error = (
                f"controller {request.address} gave an answer to {request.code} that cannot be understood: {error}"
            )
            log.warning("%s", self.last_error)
            self._unanswered(request, now_ms)

    def failed(self, token: int, reason: str, now_ms: int) -> None:
        if self._discovering.pop(token, None) is not None:
            if self.leader is None:
                self.last_error = f"no controller says who leads: {reason}"
            return
        request = self._take_pending(token)
        if request is None:
            return
        self.last_error = reason
        self._lose_leader(now_ms)
        self._unanswered(request, now_ms)

    def notified(self, now_ms: int) -> None:
        """A leader that has owed an answer for a while is not waited for."""
        self._asked.add(Ask.SYNC)
        self._sync_at_ms = now_ms
        if self._pending is not None and now_ms - self._idle_ms >= _PATIENCE_MS:
            self.failed(self._pending.token, f"controller {self._pending.address} owes an answer", now_ms)

    # Requests

    def _ask(self, leader: str, now_ms: int, wall_ms: int) -> None:
        """Send the most urgent request to the leader, if there is one."""
        if self.registration.step is not Step.REGISTERED:
            if now_ms >= self._step_at_ms:
                self._ask_registration(leader, wall_ms)
        elif not self._speaker.tail_kept and now_ms >= self._retell_at_ms:
            self._ask_registration(leader, wall_ms)
        elif self._proposal is not None:
            proposal, master_epoch = self._proposal
            self._proposal = None
            self._pending_proposal = proposal
            fields = self._speaker.alteration_fields(master_epoch, wall_ms)
            body = orjson.dumps({"syncStateSet": sorted(proposal.members), "syncStateSetEpoch": proposal.base_epoch})
            self._send(leader, codes.CONTROLLER_ALTER_SYNC_STATE_SET, fields, body)
        elif self._asked and Ask.ELECTION in self._asked and now_ms >= self._elect_at_ms:
            self._asked.remove(Ask.ELECTION)
            self._elect_at_ms = now_ms + _ELECTION_RETRY_MS
            self._heartbeat(leader)
            self._send(leader, codes.CONTROLLER_ELECT_MASTER, self._speaker.election_fields(wall_ms))
        elif now_ms >= self._poll_at_ms or (now_ms >= self._sync_at_ms and self._asked and Ask.SYNC in self._asked):
            self._asked.discard(Ask.SYNC)
            self._sync_at_ms = now_ms + _SYNC_RETRY_MS
            self._poll_at_ms = now_ms + self._settings.controller_poll_ms
            self._send(leader, codes.CONTROLLER_GET_REPLICA_INFO, {"brokerName": self._names.broker_name})
        elif (self._asked and Ask.MEMBERS in self._asked) or now_ms >= self._members_at_ms:
            self._asked.discard(Ask.MEMBERS)
            self._members_at_ms = now_ms + _MEMBERS_POLL_MS
            body = orjson.dumps([self._names.broker_name])
            self._send(leader, codes.CONTROLLER_GET_SYNC_STATE_DATA, {"invokeTime": str(wall_ms)}, body)

    def _ask_registration(self, leader: str, wall_ms: int) -> None:
        step = self.registration.step
        if step is Step.UNKNOWN:
            self._send(leader, codes.CONTROLLER_GET_NEXT_BROKER_ID, self._speaker.group_fields())
        elif step is Step.CHOSEN:
            self._send(leader, codes.CONTROLLER_APPLY_BROKER_ID, self._speaker.application_fields())
        else:
            self._heartbeat(leader)
            self._send(leader, codes.CONTROLLER_REGISTER_BROKER, self._speaker.registration_fields(wall_ms))

    def _heartbeat(self, *addresses: str) -> None:
        if self.registration.broker_id is not None:
            fields = self._speaker.heartbeat_fields()
            self._requests += (SessionRequest(0, address, codes.BROKER_HEARTBEAT, fields) for address in addresses)

    def _discover(self, now_ms: int) -> None:
        self._discover_at_ms = now_ms + _DISCOVERY_MS
        # A leader that is asked while there is one owes an answer already.
        self._ask_who_leads((each for each in self.addresses if each != self.leader), now_ms)

    def _ask_who_leads(self, addresses: Iterable[str], now_ms: int) -> None:
        self._controllers_at_ms = now_ms + _CONTROLLERS_POLL_MS
        # Answers to an earlier round still count; the set is small because each is answered or failed in bounded time.
        for address in addresses:
            self._discovering[self._request(address, codes.CONTROLLER_GET_METADATA_INFO, {}).token] = address

    def _discovered(self, code: int, ext: Mapping[str, str], now_ms: int) -> None:
        if code != codes.SUCCESS:
            return
        self._learn(ext.get("peers", ""), now_ms)
        leader = ext.get("controllerLeaderAddress", "")
        if not leader or leader == self.leader:
            return
        if leader not in self.addresses:
            self.last_error = f"the controllers name {leader} as their leader, which is not in this broker's list"
            return
        if self.leader is not None:
            pending = self._pending
            if pending is None or now_ms - self._idle_ms < _PATIENCE_MS or ext.get("isLeader") != "true":
                return
            self.failed(pending.token, f"controller {pending.address} owes an answer, and {leader} leads now", now_ms)
        self.leader = leader
        self._poll_at_ms = now_ms
        self._step_at_ms = now_ms

    def _learn(self, peers: str, now_ms: int) -> None:
        """Take up the controllers of `id:host:port;...` besides the given ones."""
        named = [peer.partition(":")[2] for peer in peers.split(";", _MAX_LEARNED)[:_MAX_LEARNED]]
        learned = tuple(dict.fromkeys(each for each in named if answers.is_address(each) and each not in self._given))
        if not peers or self.addresses == self._given + learned:
            return
        log.info("the controllers are %s", ", ".join(self._given + learned))
        self.addresses = self._given + learned
        self._heartbeat_at_ms = now_ms

    def _send(self, address: str, code: int, ext: dict[str, str], body: bytes = b"") -> None:
        assert self._pending is None
        self._pending = self._request(address, code, ext, body)

    def _take_pending(self, token: int) -> SessionRequest | None:
        request = self._pending
        if request is None or request.token != token:
            return None
        self._pending = None
        return request

    def _lose_leader(self, now_ms: int) -> None:
        self.leader = None
        self._discover_at_ms = now_ms

    # Answers

    def _digest(self, request: SessionRequest, code: int, ext: Mapping[str, str], body: Bytes, now_ms: int) -> None:
        fine = code in (codes.SUCCESS, codes.CONTROLLER_MASTER_STILL_EXIST)
        self.last_error = "" if fine else f"controller {request.address} answered {code} to request {request.code}"
        match request.code:
            case codes.CONTROLLER_ALTER_SYNC_STATE_SET:
                self._altered(code, ext, body, now_ms)
            case codes.CONTROLLER_ELECT_MASTER:
                self._elected(code, ext, body, now_ms)
            case codes.CONTROLLER_GET_REPLICA_INFO:
                self._on_replica_info(code, ext, body, now_ms)
            case codes.CONTROLLER_GET_SYNC_STATE_DATA:
                if code == codes.SUCCESS:
                    self._driver.members_known(*answers.members(body, self._names.broker_name), now_ms)
            case _:
                self._step_answered(request.code, code, ext, body, now_ms)

    def _step_answered(self, request: int, code: int, ext: Mapping[str, str], body: Bytes, now_ms: int) -> None:
        registration = self.registration
        if code == codes.SUCCESS:
            self._step_at_ms = now_ms
            if request == codes.CONTROLLER_GET_NEXT_BROKER_ID:
                registration.next_id(answers.positive(ext["nextBrokerId"]))
            elif request == codes.CONTROLLER_APPLY_BROKER_ID:
                registration.applied()
                assert registration.broker_id is not None
                self._driver.identified(registration.broker_id)
            else:
                self._registered(ext, body, now_ms)
            return
        self._step_at_ms = now_ms + _STEP_RETRY_MS
        if "twinAddress" in ext:
            self._refused_for_twin(ext["twinAddress"], claims=ext.get("twinClaims") == "true")
        if code == codes.CONTROLLER_BROKER_ID_INVALID:
            log.warning("the controllers refuse broker id %s", registration.choice and registration.choice.broker_id)
            registration.taken()
        elif code == codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            registration.forgotten()

    def _refused_for_twin(self, address: str, *, claims: bool) -> None:
        """Another process lives under this broker's identity; whoever is there first keeps it. It only `claims` the id, too, when
        they came at about the same time."""
        other = "claims it, too, and nobody can tell which was there first" if claims else "has it and is alive"
        sentence = (
            f"two processes have the identity of broker {self.registration.broker_id} of {self._names.broker_name}: the one at "
            f"{address} {other}, this one at {self._names.address} serves nobody until it is gone; "
            "stop the one that runs on a copy of the data directory"
        )
        if sentence != self._twin_told:
            self._twin_told = sentence
            log.error("%s", sentence)
        self.last_error = sentence

    def _registered(self, ext: Mapping[str, str], body: Bytes, now_ms: int) -> None:
        self.registration.registered()
        if self._speaker.lives is not None:
            self._speaker.lives.registered()
        self._retell_at_ms = now_ms + _RETELL_MS
        members, _ = answers.sync_state_set(body)
        own_id = self.registration.broker_id
        if ext.get("runsElsewhere") == "true":
            self._speaker.runs_elsewhere()
        elif not self._speaker.tail_kept and own_id not in members:
            self._speaker.tail_judged()
        elif members == {own_id} and not self._speaker.lacks_confirmed:
            self._speaker.tail_kept = True  # whatever is lost, nobody else may lead
        view = answers.view(ext, body)
        if view is not None and view.master_id is not None:
            self._poll_at_ms = now_ms + self._settings.controller_poll_ms
            self._told_of_epoch = view.master_epoch
            self._driver.observed(view, now_ms)
        else:
            # No master named means "none that lives", not "none recorded": ask what is recorded.
            self._poll_at_ms = now_ms

    def _altered(self, code: int, ext: Mapping[str, str], body: Bytes, now_ms: int) -> None:
        proposal = self._pending_proposal
        assert proposal is not None
        if code != codes.SUCCESS:
            self._pending_proposal = None
            self._driver.proposal_failed(proposal.token, code, now_ms)
            return
        members, set_epoch = answers.sync_state_set(body)
        if not members:
            members, set_epoch = proposal.members, int(ext["newSyncStateSetEpoch"])
        self._pending_proposal = None
        self._driver.proposal_accepted(proposal.token, members, set_epoch, now_ms)

    def _elected(self, code: int, ext: Mapping[str, str], body: Bytes, now_ms: int) -> None:
        if code == codes.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            self.registration.forgotten()
        view = answers.view(ext, body) if code in (codes.SUCCESS, codes.CONTROLLER_MASTER_STILL_EXIST) else None
        if view is None or view.master_id is None:
            self._asked.add(Ask.SYNC)  # refused: see what is recorded, and ask again if that is still nobody
            self._sync_at_ms = now_ms + _ELECTION_RETRY_MS
            return
        self._poll_at_ms = now_ms + self._settings.controller_poll_ms
        self._look_at(view, now_ms)

    def _on_replica_info(self, code: int, ext: Mapping[str, str], body: Bytes, now_ms: int) -> None:
        if code == codes.CONTROLLER_BROKER_METADATA_NOT_EXIST:
            self.registration.unregistered()
            self._step_at_ms = now_ms + _STEP_RETRY_MS
        if code != codes.SUCCESS:
            return
        if (view := answers.view(ext, body)) is not None:
            self._look_at(view, now_ms)

    def _look_at(self, view: RoleView, now_ms: int) -> None:
        """Under a new master the controllers may be able to judge what this broker's log lost: they are told again at once."""
        if self._is_named_elsewhere(view):
            self.registration.unregistered()
        if view.master_epoch != self._told_of_epoch:
            self._told_of_epoch, self._retell_at_ms = view.master_epoch, now_ms
        self._driver.observed(view, now_ms)

    def _is_named_elsewhere(self, view: RoleView) -> bool:
        """Whether this process was elected, and replicas are sent to another one's address: one that ran on a copy of the data
        directory was registered under the id meanwhile, and is gone."""
        is_own = view.master_id == self.registration.broker_id and view.master_incarnation == self._speaker.incarnation
        return is_own and view.master_address not in ("", self._names.address)

    def _unanswered(self, request: SessionRequest, now_ms: int) -> None:
        """The outcome is unknown: tell who must know, ask again for the rest."""
        proposal, self._pending_proposal = self._pending_proposal, None
        if proposal is not None:
            self._driver.proposal_failed(proposal.token, None, now_ms)
        elif request.code == codes.CONTROLLER_ELECT_MASTER:
            self._asked.add(Ask.SYNC)
        elif request.code == codes.CONTROLLER_GET_SYNC_STATE_DATA:
            self._asked.add(Ask.MEMBERS)
        elif request.code == codes.CONTROLLER_GET_REPLICA_INFO:
            self._poll_at_ms = now_ms + _SYNC_RETRY_MS
        else:
            self._step_at_ms = now_ms + _STEP_RETRY_MS
