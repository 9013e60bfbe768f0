"""K1 to K10: what must be true after a run, whatever the faults were (pure).

Each check gives back what contradicts it, as sentences; none means that it holds. They look at what clients recorded, at what was
read back from the healed cluster, and at what the daemons' disks held when everything had stopped.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from remoting.record.codec import Record, body_is_intact
from remoting.record.hosts import unpack_host
from tests.chaos.addresses import node_at
from tests.chaos.history import Delivery, History, Kind, Operation, Outcome, body_of, name_in, parse_name

GRPC_CLIENT: Final = "grpc"
_SHOWN: Final = 3

# Who must get every message: the clients that read the topic of the remoting producers
PULLING: Final = "pull"
POPPING: Final = "pop"


@dataclass
class Aftermath:
    """What the healed cluster had, and what its disks held when it had stopped."""

    records: Mapping[int, Sequence[Record]] = field(default_factory=dict)  # of the producers' topic, by queue
    grpc_records: Mapping[int, Sequence[Record]] = field(default_factory=dict)
    logs: Mapping[str, LogCopy] = field(default_factory=dict)
    controller_logs: Mapping[str, ControllerLog] = field(default_factory=dict)
    exits: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of daemons that ended by themselves
    stop_codes: Mapping[str, int] = field(default_factory=dict)
    rejoined_s: Sequence[float | None] = ()  # per heal: until all replicas were in sync again
    recoveries: Sequence[Recovery] = ()
    may_expire: bool = False  # a full disk makes retention delete the oldest messages, consumed or not


@dataclass(frozen=True)
class LogCopy:
    """A broker's log [start, end) and its epochs as (epoch, start offset)."""

    start: int
    content: bytes
    epochs: Sequence[tuple[int, int]]

    @property
    def end(self) -> int:
        return self.start + len(self.content)


@dataclass(frozen=True)
class ControllerLog:
    """The committed entries that a controller's disk holds, from `first` on, as (term, command)."""

    first: int
    entries: Sequence[tuple[int, bytes]]


@dataclass(frozen=True)
class Recovery:
    """The longest time without an acknowledged send around one fault, and what it may be. None: none during the fault."""

    fault: str
    took_s: float | None
    limit_s: float | None
    why: str = ""


Check = Callable[[History, Aftermath], list[str]]


def _some(what: str, found: Iterable[object]) -> list[str]:
    """One sentence for any number of findings of a kind."""
    listed = list(found)
    shown = "; ".join(str(each) for each in listed[:_SHOWN])
    return [f"{len(listed)} {what}: {shown}"] if listed else []


def _acknowledged(history: History, *, grpc: bool = False) -> Iterator[Operation]:
    for each in history.sends():
        if each.outcome is Outcome.OK and (each.client == GRPC_CLIENT) == grpc:
            yield each


def lost_messages(history: History, aftermath: Aftermath) -> list[str]:
    """The names of acknowledged messages that are not in the log, and have not expired."""
    stored = {name_in(record.body) for records in aftermath.records.values() for record in records}
    stored |= {name_in(record.body) for records in aftermath.grpc_records.values() for record in records}
    done = [each for each in history.sends() if each.outcome is Outcome.OK]
    return [each.message for each in done if each.message not in stored and not _expired(each, aftermath)]


def _expired(send: Operation, aftermath: Aftermath) -> bool:
    """Whether a message was at an offset below the first one that its queue still has."""
    queues = aftermath.grpc_records if send.client == GRPC_CLIENT else aftermath.records
    records = queues.get(send.queue_id)
    return aftermath.may_expire and bool(records) and send.value < records[0].queue_offset


def duplicated_deliveries(history: History) -> int:
    """How many deliveries repeated a message for the same consumer: allowed, and counted."""
    counts = Counter((each.client, each.body) for each in history.deliveries)
    return sum(count - 1 for count in counts.values())


def k1_acknowledged_messages_are_consumed(history: History, aftermath: Aftermath) -> list[str]:
    """Every message with SEND_OK is in the log, and was consumed at least once by each consumer group."""
    problems = _some("acknowledged messages are lost", lost_messages(history, aftermath))
    got: dict[str, set[str]] = defaultdict(set)
    for delivery in history.deliveries:
        got[delivery.client].add(name_in(delivery.body))
    for consumer in (PULLING, POPPING):
        missed = [
            each.message
            for each in _acknowledged(history)
            if each.message not in got[consumer] and not _expired(each, aftermath)
        ]
        problems += _some(f"acknowledged messages were never consumed by {consumer}", missed)
    missed = [
        each.message
        for each in _acknowledged(history, grpc=True)
        if each.message not in got[GRPC_CLIENT] and not _expired(each, aftermath)
    ]
    return problems + _some("acknowledged messages were never consumed over gRPC", missed)


def k2_nothing_is_invented_halved_or_stored_twice(history: History, aftermath: Aftermath) -> list[str]:
    """What is stored or delivered was sent, and is whole; what the client never sent again is stored once.

    The gRPC client sends again by itself, so its messages may be there more than once.
    """
    sent = {each.message for each in history.sends()}
    refused = {each.message for each in history.sends() if each.outcome is Outcome.FAILED}
    stored = [record for records in aftermath.records.values() for record in records]
    over_grpc = [record for records in aftermath.grpc_records.values() for record in records]
    damaged = [
        name_in(each.body) for each in (*stored, *over_grpc) if not body_is_intact(each) or not _is_whole(each.body)
    ]
    damaged += [name_in(each.body) for each in history.deliveries if not _is_whole(each.body)]
    names = Counter(name_in(record.body) for record in stored)
    delivered = {name_in(each.body) for each in history.deliveries}
    return [
        *_some("messages are damaged", damaged),
        *_some("messages were never sent", ({*names, *(name_in(each.body) for each in over_grpc)} | delivered) - sent),
        *_some("messages are stored more than once", (name for name, count in names.items() if count > 1)),
        *_some("messages are stored although their send was refused", refused & set(names)),
        *_some("messages lost their properties", (name_in(each.body) for each in stored if not _has_its_key(each))),
    ]


def _is_whole(body: bytes) -> bool:
    return body == body_of(name_in(body))


def _has_its_key(record: Record) -> bool:
    name = name_in(record.body)
    properties = record.property_map()
    return properties.get("UNIQ_KEY") == name and properties.get("KEYS") == parse_name(name)[1]


def k3_replicas_are_identical(_: History, aftermath: Aftermath) -> list[str]:
    """All logs are the same bytes wherever they overlap, and so are the epochs there."""
    if not aftermath.logs:
        return ["no log was compared"]
    start = max(log.start for log in aftermath.logs.values())
    end = min(log.end for log in aftermath.logs.values())
    if start >= end:
        return [f"the logs have no byte in common: from {start} on, below {end}"]
    problems = []
    (first, reference), *others = sorted(aftermath.logs.items())
    expected = reference.content[start - reference.start : end - reference.start]
    epochs = _epochs_within(reference, start, end)
    for name, log in others:
        content = log.content[start - log.start : end - log.start]
        if content != expected:
            at = next(n for n, (one, other) in enumerate(zip(expected, content, strict=True)) if one != other)
            problems.append(f"the logs of {first} and {name} differ from {start + at} on")
        if _epochs_within(log, start, end) != epochs:
            problems.append(f"the epochs of {first} and {name} differ: {epochs} and {_epochs_within(log, start, end)}")
    return problems


def _epochs_within(log: LogCopy, start: int, end: int) -> list[tuple[int, int]]:
    """The epochs that have bytes in the range, with where they begin in it."""
    following = [*(offset for _, offset in log.epochs[1:]), log.end]
    return [
        (epoch, max(offset, start))
        for (epoch, offset), until in zip(log.epochs, following, strict=True)
        if offset < end and until > start
    ]


def k4_queues_are_dense_and_ordered(history: History, aftermath: Aftermath) -> list[str]:
    """Queue offsets are 0, 1, 2 ...; a message is where its answer said; one key's acknowledged messages keep their order."""
    problems = []
    at: dict[tuple[int, int], str] = {}
    acknowledged = {each.message for each in _acknowledged(history)}
    for queue_id, records in aftermath.records.items():
        first = records[0].queue_offset if records and aftermath.may_expire else 0
        if [record.queue_offset for record in records] != list(range(first, first + len(records))):
            problems.append(f"the offsets of queue {queue_id} are not dense")
        at |= {(queue_id, record.queue_offset): name_in(record.body) for record in records}
        last: dict[str, int] = {}
        for record in records:
            if (name := name_in(record.body)) in acknowledged:
                _, key, sequence = parse_name(name)
                if sequence <= last.get(key, -1):
                    problems.append(f"queue {queue_id}: {name} comes after number {last[key]} of its key")
                last[key] = sequence
    moved = [
        f"{each.message} at {each.queue_id}:{each.value}"
        for each in _acknowledged(history)
        if at.get((each.queue_id, each.value)) != each.message and not _expired(each, aftermath)
    ]
    seen: dict[tuple[int, int], bytes] = {}
    changed = [
        f"{each.queue_id}:{each.queue_offset}"
        for each in history.deliveries
        if each.client == PULLING and seen.setdefault((each.queue_id, each.queue_offset), each.body) != each.body
    ]
    return [
        *problems,
        *_some("acknowledged messages are not where the answer said", moved),
        *_some("queue offsets held different messages at different times", changed),
    ]


def k5_one_broker_acknowledges_in_an_epoch(history: History, aftermath: Aftermath) -> list[str]:
    """Who acknowledged a message is who stored it, and nobody else acknowledged in that epoch.

    The epoch of an acknowledged message is the one that covers its physical offset in the healed log.
    """
    if not aftermath.logs:
        return ["no epoch is known"]
    epochs = max((log.epochs for log in aftermath.logs.values()), key=len)
    records = {name_in(record.body): record for queue in aftermath.records.values() for record in queue}
    brokers: dict[int, set[str]] = defaultdict(set)
    elsewhere = []
    for each in _acknowledged(history):
        record = records.get(each.message)
        if record is None:
            continue  # lost: the first check's business
        brokers[_epoch_at(epochs, record.physical_offset)].add(each.broker)
        stored_by = node_at(unpack_host(record.store_host)[0])
        if stored_by != each.broker:
            elsewhere.append(f"{each.message} by {each.broker}, stored by {stored_by}")
    named: dict[int, set[str]] = defaultdict(set)
    for view in history.views:
        if view.master is not None:
            named[view.master_epoch].add(view.master)
    problems = [
        f"epoch {epoch}: {', '.join(sorted(who))} all acknowledged" for epoch, who in brokers.items() if len(who) > 1
    ]
    problems += [
        f"epoch {epoch}: {', '.join(sorted(who))} were all named master" for epoch, who in named.items() if len(who) > 1
    ]
    problems += [
        f"epoch {epoch}: {', '.join(who)} acknowledged, but {', '.join(named[epoch])} was named master"
        for epoch, who in brokers.items()
        if epoch in named and not who <= named[epoch]
    ]
    return problems + _some("messages were acknowledged by another broker than stored them", elsewhere)


def _epoch_at(epochs: Sequence[tuple[int, int]], physical_offset: int) -> int:
    return max((epoch for epoch, start in epochs if start <= physical_offset), default=0)


def k6_consumer_offsets_stay_sound(history: History, _: Aftermath) -> list[str]:
    """No group's offset is beyond the end of its queue on any broker; what was committed is not forgotten."""
    beyond = []
    for view in history.broker_views:
        ends = {(topic, queue_id): offset for topic, queue_id, offset in view.max_offsets}
        for name, queue_id, offset in view.consumer_offsets:
            topic = name.partition(" ")[2]
            if offset > ends.get((topic, queue_id), 0):
                beyond.append(
                    f"{name} queue {queue_id} is {offset} on {view.node}, of {ends.get((topic, queue_id), 0)}"
                )
    forgotten = []
    queues = {each.queue_id for each in history.operations if each.kind is Kind.COMMITTED}
    for queue_id in queues:
        commits = _done(history, Kind.COMMIT, queue_id)
        for asked in _done(history, Kind.COMMITTED, queue_id):
            known = max((each.value for each in commits if each.end_s < asked.start_s), default=0)
            if asked.value < known:
                forgotten.append(
                    f"queue {queue_id}: {known} was committed, {asked.value} was answered by {asked.broker}"
                )
    return [*_some("consumer offsets lie beyond their queue", beyond), *_some("committed offsets went back", forgotten)]


def _done(history: History, kind: Kind, queue_id: int) -> list[Operation]:
    return [
        each
        for each in history.operations
        if each.kind is kind and each.queue_id == queue_id and each.outcome is Outcome.OK
    ]


def k7_controllers_agree(history: History, aftermath: Aftermath) -> list[str]:
    """Committed commands are the same on all controllers as far as each has them; reads never go back in time."""
    if not any(log.entries for log in aftermath.controller_logs.values()):
        return ["no controller's log was compared"]
    problems = []
    known: dict[int, tuple[str, tuple[int, bytes]]] = {}
    for node, log in sorted(aftermath.controller_logs.items()):
        for index, entry in enumerate(log.entries, start=log.first):
            other, expected = known.setdefault(index, (node, entry))
            if entry != expected:
                problems.append(f"{other} and {node} have different commands at {index}")
                break
    waiting = sorted(history.reads, key=lambda each: each.end_s)
    newest, ended = (0, 0), 0
    for read in sorted(history.reads, key=lambda each: each.start_s):
        while ended < len(waiting) and waiting[ended].end_s < read.start_s:
            newest = max(newest, (waiting[ended].master_epoch, waiting[ended].set_epoch))
            ended += 1
        if (read.master_epoch, read.set_epoch) < newest:
            problems.append(
                f"{read.node} answered {read.master_epoch}, {read.set_epoch} after somebody was told {newest}"
            )
    return problems


def k8_epochs_never_go_back(history: History, _: Aftermath) -> list[str]:
    """As seen at any one place: a leading controller's epochs of master and set, a broker's epoch."""
    backwards = []
    newest: dict[str, tuple[int, int]] = {}
    for view in history.views:
        if not view.is_leader:
            continue  # one that follows, or has just started, knows the past only
        master_epoch, set_epoch = newest.get(view.node, (0, 0))
        if view.master_epoch < master_epoch or view.set_epoch < set_epoch:
            backwards.append(
                f"{view.node} led with {master_epoch}, {set_epoch} and then {view.master_epoch}, {view.set_epoch}"
            )
        newest[view.node] = max(master_epoch, view.master_epoch), max(set_epoch, view.set_epoch)
    of_brokers: dict[str, int] = {}
    for seen in history.broker_views:
        if not seen.master_epoch:
            continue  # just started: it has not asked for its role yet
        if seen.master_epoch < of_brokers.get(seen.node, 0):
            backwards.append(f"{seen.node} was in epoch {of_brokers[seen.node]} and then in {seen.master_epoch}")
        of_brokers[seen.node] = max(of_brokers.get(seen.node, 0), seen.master_epoch)
    return _some("times an epoch went back", backwards)


def k9_sends_recover_in_time(_: History, aftermath: Aftermath) -> list[str]:
    """The longest time without an acknowledged send is within the limit of the kind of fault."""
    late = []
    for recovery in aftermath.recoveries:
        if recovery.limit_s is None:
            continue
        if recovery.took_s is None:
            late.append(
                f"{recovery.fault}: no send succeeded any more during the fault (limit {recovery.limit_s:.1f} s, {recovery.why})"
            )
        elif recovery.took_s > recovery.limit_s:
            late.append(f"{recovery.fault}: {recovery.took_s:.2f} s, limit {recovery.limit_s:.1f} s ({recovery.why})")
    return late


def k10_everybody_comes_back(_: History, aftermath: Aftermath) -> list[str]:
    """No process ends by itself, every replica is in sync again after each heal, and all stop when told to."""
    problems = [f"{name} ended by itself with {list(codes)}" for name, codes in aftermath.exits.items()]
    if None in aftermath.rejoined_s:
        problems.append("not all replicas came back into the sync-state set after the heal")
    return problems + [
        f"{name} ended with {code} when told to stop" for name, code in aftermath.stop_codes.items() if code
    ]


def acked_messages_do_not_return(history: History, _: Aftermath) -> list[str]:
    """A message whose ack was answered is not handed out again by a pop that begins later.

    Remoting only: what the gRPC client sent twice by itself is two messages with one name.
    """
    acked: dict[tuple[str, str], float] = {}
    for each in history.operations:
        if each.kind is Kind.ACK and each.client == POPPING and each.outcome is Outcome.OK:
            acked.setdefault((each.client, each.message), each.end_s)

    def returned(delivery: Delivery) -> bool:
        return delivery.start_s > acked.get((delivery.client, name_in(delivery.body)), float("inf"))

    return _some("acked messages came again", (name_in(each.body) for each in history.deliveries if returned(each)))


CHECKS: Final[Mapping[str, Check]] = {
    "K1": k1_acknowledged_messages_are_consumed,
    "K2": k2_nothing_is_invented_halved_or_stored_twice,
    "K3": k3_replicas_are_identical,
    "K4": k4_queues_are_dense_and_ordered,
    "K5": k5_one_broker_acknowledges_in_an_epoch,
    "K6": k6_consumer_offsets_stay_sound,
    "K7": k7_controllers_agree,
    "K8": k8_epochs_never_go_back,
    "K9": k9_sends_recover_in_time,
    "K10": k10_everybody_comes_back,
    "POP": acked_messages_do_not_return,
}
