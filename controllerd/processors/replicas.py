"""Requests of brokers and administrators about replicas, answered by the serving leader only.

Writes are proposed and answered with what was decided; an outcome that is not known is an error. Reads wait until a majority
confirmed that this controller still leads, so that a replaced leader tells nobody of an old master.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeAlias

import orjson

from controllerd.metrics import Counters, election_result
from controllerd.processors import fields
from controllerd.processors.heartbeats import MOST_LIVES
from controllerd.processors.serving import Handles
from controllerd.raft.driver import RaftDriver
from controllerd.records.decision import Applied
from controllerd.replicas.answers import election_body, master_fields, replicas_info, sync_state_set_body
from controllerd.replicas.broker_groups import BrokerGroups
from controllerd.replicas.decide import decide
from controllerd.replicas.heartbeat import LOWEST_PRIORITY, Heartbeat
from controllerd.replicas.lives import runs_elsewhere
from controllerd.replicas.requests import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanBroker,
    ElectMaster,
    Observation,
    RegisterBroker,
    Request,
    Trigger,
)
from controllerd.replicas.state import MAX_EPOCH, MAX_REPLICAS, Group, ReplicasState
from controllerd.replicas.triggers import observe_for_request
from controllerd.settings import ElectionSettings
from remoting import codes, frame
from remoting.errors import InvalidParameter, RequestError
from remoting.settings import Live
from remoting.transport.client import split_address
from remoting.transport.connection import RemotingConnection

log = logging.getLogger(__name__)

_MAX_NAMES: Final = 4096
HandOver: TypeAlias = Callable[[Group, int], Awaitable[str | None]]
_Applied: TypeAlias = Applied[ReplicasState]


class ReplicasProcessor:
    """Handlers over the replicated state. `hand_over` asks the master before a designated election; without it nobody does."""

    def __init__(
        self,
        election: Live[ElectionSettings],
        driver: RaftDriver,
        groups: BrokerGroups,
        counters: Counters,
        timeout_ms: int,
        hand_over: HandOver | None = None,
    ) -> None:
        self._election = election
        self._driver = driver
        self._groups = groups
        self._counters = counters
        self._hand_over = hand_over
        self._timeout_ms = timeout_ms
        self._twin_told = ""  # the last word about two processes with one id, so that the log has it once

    def handles(self) -> Handles:
        return {
            codes.CONTROLLER_ALTER_SYNC_STATE_SET: self._alter_sync_state_set,
            codes.CONTROLLER_ELECT_MASTER: self._elect_master,
            codes.CONTROLLER_REGISTER_BROKER: self._register_broker,
            codes.CONTROLLER_GET_REPLICA_INFO: self._get_replica_info,
            codes.CONTROLLER_GET_SYNC_STATE_DATA: self._get_sync_state_data,
            codes.CONTROLLER_GET_NEXT_BROKER_ID: self._get_next_broker_id,
            codes.CONTROLLER_APPLY_BROKER_ID: self._apply_broker_id,
            codes.CLEAN_BROKER_DATA: self._clean_broker_data,
        }

    # Writes

    async def _alter_sync_state_set(self, connection: RemotingConnection, request: frame.Command) -> None:
        broker_name = fields.name(request, "brokerName")
        proposed, set_epoch = _decode_sync_state_set(request.body)
        group = self._groups.get(broker_name)
        table, now_ms = self._groups.table, self._groups.now_ms()
        not_alive = table.not_alive(group, proposed, now_ms) if group else ()
        observed = table.observe(group, now_ms) if group else ()
        applied = await self._propose(
            AlterSyncStateSet(
                broker_name,
                fields.number(request, "masterBrokerId"),
                fields.number(request, "masterEpoch"),
                proposed,
                set_epoch,
                not_alive,
                tuple(each for each in observed if each.broker_id in proposed),
                table.counts_lives,
            )
        )
        changed = _group_of(applied, broker_name)
        ext = {"newSyncStateSetEpoch": str(changed.sync_state_set_epoch)}
        connection.respond(request, ext=ext, body=sync_state_set_body(changed))

    async def _elect_master(self, connection: RemotingConnection, request: frame.Command) -> None:
        broker_name = fields.name(request, "brokerName")
        designate = fields.flag(request, "designateElect")
        broker_id = fields.number(request, "brokerId", -1)
        if designate and broker_id < 1:
            raise InvalidParameter("brokerId must name the replica that is to become master")
        wanted = ElectMaster(
            fields.name(request, "clusterName"),
            broker_name,
            Trigger.ADMIN if designate else Trigger.BROKER,
            (),
            broker_id if broker_id >= 1 else None,
            designate,
            self._election.value.unclean,
            keeps_members=True,
        )
        wanted = self._with_observations(wanted)
        remark = None
        if designate and self._hand_over is not None and (group := self._switch_of(wanted)) is not None:
            remark = await self._hand_over(group, broker_id)
            wanted = replace(self._with_observations(wanted), seen_master_epoch=group.master_epoch)
        applied = await self._propose(wanted, codes.CONTROLLER_MASTER_STILL_EXIST)
        elected = _group_of(applied, broker_name)
        remark = applied.reply.remark or remark
        connection.respond(request, applied.reply.code, master_fields(elected), election_body(elected), remark)

    def _with_observations(self, wanted: ElectMaster) -> ElectMaster:
        """The request with what is known of the group's replicas now."""
        group, now_ms = self._groups.get(wanted.broker_name), self._groups.now_ms()
        if group is None:
            return wanted
        return replace(
            wanted,
            observed=observe_for_request(group, self._groups.table, now_ms),
            last_known=self._groups.table.last_words(group, now_ms) if wanted.unclean else (),
            at_ms=self._groups.wall_ms(),
        )

    def _switch_of(self, wanted: ElectMaster) -> Group | None:
        """The group, when the request would take the mastership from a live master now."""
        group = self._groups.get(wanted.broker_name)
        if group is None or group.master_broker_id is None or not self._groups.is_alive(group, group.master_broker_id):
            return None
        if group.master_broker_id == wanted.broker_id or not decide(self._groups.decided(), wanted).records:
            return None
        return group

    async def _apply_broker_id(self, connection: RemotingConnection, request: frame.Command) -> None:
        wanted = ApplyBrokerId(
            fields.name(request, "clusterName"),
            fields.name(request, "brokerName"),
            fields.number(request, "appliedBrokerId"),
            fields.text(request, "registerCheckCode"),
        )
        _check_address(wanted.register_check_code.split(";")[0])
        await self._propose(wanted)
        ext = {"clusterName": wanted.cluster_name, "brokerName": wanted.broker_name}
        connection.respond(request, ext=ext)

    async def _register_broker(self, connection: RemotingConnection, request: frame.Command) -> None:
        wanted = RegisterBroker(
            fields.name(request, "clusterName"),
            fields.name(request, "brokerName"),
            fields.number(request, "brokerId"),
            _check_address(fields.text(request, "brokerAddress")),
            _check_address(fields.text(request, "haAddress", "")),
            _check_address(fields.text(request, "grpcAddress", "")),
            min(max(fields.number(request, "highestMasterEpoch", 0), 0), MAX_EPOCH),
            self._lost_tail(request),
            fields.number(request, "maxOffset", -1),
            self._others_have_all(request),
            self._life(request),
        )
        await self._driver.read_barrier(self._timeout_ms)
        twin = self._twin_of(wanted, fields.number(request, "incarnation", 0))
        if twin is not None:
            self._refuse_twin(connection, request, wanted, twin)
            return
        state = self._groups.decided()
        decision = decide(state, wanted)
        applied = Applied(decision.reply, state)
        if decision.records:
            applied = await self._propose(wanted)
        group = _group_of(_accepted(applied), wanted.broker_name)
        ext = {"clusterName": wanted.cluster_name, "brokerName": wanted.broker_name}
        if any(runs_elsewhere(group, each) for each in wanted.observed):
            ext["runsElsewhere"] = "true"  # it is to say so until it has left the set
        if group.master_broker_id is not None and self._groups.is_alive(group, group.master_broker_id):
            ext |= master_fields(group)
        if applied.reply.remark:
            log.warning("%s: %s", wanted.broker_name, applied.reply.remark)
        connection.respond(request, ext=ext, body=sync_state_set_body(group), remark=applied.reply.remark)

    def _twin_of(self, wanted: RegisterBroker, incarnation: int) -> Heartbeat | None:
        """The other living process that has the id."""
        group = self._groups.get(wanted.broker_name)
        if group is None:
            return None
        return self._groups.table.other_process(group, wanted.broker_id, incarnation, self._groups.now_ms())

    def _refuse_twin(
        self, connection: RemotingConnection, request: frame.Command, wanted: RegisterBroker, twin: Heartbeat
    ) -> None:
        """Whoever has the id and lives keeps it: nobody can tell the original of a data directory from its copy."""
        now_ms, table, group = self._groups.now_ms(), self._groups.table, self._groups.get(wanted.broker_name)
        claims = group is not None and table.is_contested(group, wanted.broker_id, now_ms)
        other = "claims it, too, and nobody can tell which was there first" if claims else "has it and is alive"
        sentence = (
            f"two processes have the identity of broker {wanted.broker_id} of {wanted.broker_name}: the one at {twin.address} "
            f"{other}, the one at {wanted.address} is refused until that is gone"
        )
        table.refused(twin, wanted.address, now_ms)
        if sentence != self._twin_told:
            self._twin_told = sentence
            log.warning("%s", sentence)
        ext = {"twinAddress": twin.address} | ({"twinClaims": "true"} if claims else {})
        connection.respond(request, codes.CONTROLLER_INVALID_REQUEST, ext, remark=sentence)

    def _lost_tail(self, request: frame.Command) -> bool:
        """Whether the broker lost what it had acknowledged: it says so, or its log ends before what it was known to have."""
        group = self._groups.get(request.ext["brokerName"])
        beat = self._groups.table.get(group, fields.number(request, "brokerId")) if group is not None else None
        return request.ext.get("tailKept") == "false" or (beat is not None and beat.lost_tail)

    def _life(self, request: frame.Command) -> tuple[Observation, ...]:
        """The process that registers, if it says which lives its directory has seen, and all controllers know what that means."""
        lives = fields.numbers(request, "lives", MOST_LIVES)
        if lives is None or not self._groups.table.counts_lives:
            return ()
        broker_id, incarnation = fields.number(request, "brokerId"), fields.number(request, "incarnation", 0)
        return (Observation(broker_id, -1, -1, LOWEST_PRIORITY, incarnation, lives=lives),)

    def _others_have_all(self, request: frame.Command) -> bool:
        """Whether another member of the set lives, and neither said nor showed that it lost anything."""
        group = self._groups.get(request.ext["brokerName"])
        return group is not None and any(
            each.broker_id in group.sync_state_set
            and not each.lost_tail
            and not each.is_learner
            and not runs_elsewhere(group, each)
            for each in self._groups.table.observe(group, self._groups.now_ms())
            if each.broker_id != fields.number(request, "brokerId")
        )

    async def _clean_broker_data(self, connection: RemotingConnection, request: frame.Command) -> None:
        broker_name = fields.name(request, "brokerName")
        group = self._groups.get(broker_name)
        now_ms = self._groups.now_ms()
        alive = [each.broker_id for each in self._groups.table.observe(group, now_ms)] if group else []
        await self._propose(
            CleanBroker(
                request.ext.get("clusterName", ""),
                broker_name,
                _ids_to_clean(request),
                fields.flag(request, "isCleanLivingBroker"),
                tuple(alive),
            )
        )
        connection.respond(request)

    # Reads

    async def _get_replica_info(self, connection: RemotingConnection, request: frame.Command) -> None:
        broker_name = fields.name(request, "brokerName")
        await self._driver.read_barrier(self._timeout_ms)
        group = self._groups.get(broker_name)
        if group is None:
            raise RequestError(
                codes.CONTROLLER_BROKER_METADATA_NOT_EXIST, f"no replica of {broker_name} is registered; register first"
            )
        connection.respond(request, ext=master_fields(group), body=sync_state_set_body(group))

    async def _get_sync_state_data(self, connection: RemotingConnection, request: frame.Command) -> None:
        try:
            names = orjson.loads(request.body)
        except ValueError as error:
            raise RequestError(codes.SYSTEM_ERROR, "the body must be a JSON array of broker names") from error
        if not isinstance(names, list) or len(names) > _MAX_NAMES or not all(isinstance(each, str) for each in names):
            raise RequestError(codes.SYSTEM_ERROR, f"the body must be a JSON array of up to {_MAX_NAMES} broker names")
        await self._driver.read_barrier(self._timeout_ms)
        groups = {each: group for each in names if (group := self._groups.get(each)) is not None}
        infos = {
            each: replicas_info(group, partial(self._groups.is_alive, group), partial(self._groups.is_learner, group))
            for each, group in groups.items()
        }
        connection.respond(request, body=orjson.dumps({"replicasInfoTable": infos}))

    async def _get_next_broker_id(self, connection: RemotingConnection, request: frame.Command) -> None:
        cluster_name, broker_name = fields.name(request, "clusterName"), fields.name(request, "brokerName")
        await self._driver.read_barrier(self._timeout_ms)
        next_id = self._groups.decided().next_broker_id(broker_name)
        ext = {"clusterName": cluster_name, "brokerName": broker_name, "nextBrokerId": str(next_id)}
        connection.respond(request, ext=ext)

    # Helpers

    async def _propose(self, wanted: Request, *also_accepted: int) -> _Applied:
        self._counters.proposals += 1
        grounds = self._groups.grounds(wanted.broker_name, wanted)
        with self._counters.log_operations.measured("append"):
            applied: _Applied = await self._driver.propose(wanted, self._timeout_ms)
        self._groups.note_decision(grounds, applied.state.groups.get(wanted.broker_name))
        if isinstance(wanted, ElectMaster):
            self._counters.elected(wanted.cluster_name, wanted.broker_name, election_result(applied.reply.code))
        return _accepted(applied, *also_accepted)


def _accepted(applied: _Applied, *also_accepted: int) -> _Applied:
    reply = applied.reply
    if reply.code != codes.SUCCESS and reply.code not in also_accepted:
        raise RequestError(reply.code, reply.remark or f"refused with code {reply.code}")
    return applied


def _group_of(applied: _Applied, broker_name: str) -> Group:
    return applied.state.groups[broker_name]


def _check_address(address: str) -> str:
    if address:
        split_address(address)
    return address


def _decode_sync_state_set(body: Any) -> tuple[tuple[int, ...], int]:
    try:
        value = orjson.loads(body)
        members, epoch = value["syncStateSet"], value["syncStateSetEpoch"]
        if not (isinstance(epoch, int) and isinstance(members, list) and len(members) <= MAX_REPLICAS):
            raise ValueError(f"at most {MAX_REPLICAS} members and an epoch")
        if not all(isinstance(each, int) for each in members):
            raise ValueError("broker ids must be whole numbers")
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidParameter(
            f'the body must be {{"syncStateSet":[ids],"syncStateSetEpoch":number}}: {error}'
        ) from error
    return tuple(sorted(set(members))), epoch


def _ids_to_clean(request: frame.Command) -> tuple[int, ...] | None:
    value = request.ext.get("brokerControllerIdsToClean", "")
    if not value.strip():
        return None
    ids = value.split(";")
    if len(ids) > MAX_REPLICAS or not all(each.strip().isdecimal() for each in ids):
        raise RequestError(
            codes.CONTROLLER_INVALID_CLEAN_BROKER_METADATA,
            f"brokerControllerIdsToClean must be up to {MAX_REPLICAS} ids with semicolons between them, such as 1;2",
        )
    return tuple(int(each) for each in ids)
