"""What must be true of a cluster: of its controllers at every decision, of its brokers at every answer, of everything at the end.

The numbers in the sentences are those of the checkers: acknowledged never lost, no phantom, duplicates explained, dense and equal
queues, offsets that do not go back, one acknowledging master per epoch, finished pops, one decided history, and what is derived
agrees with the log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from brokerd.metadata.tables import MetadataTables
from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.sending.outcomes import SendOutcome
from brokerd.store.draft import Draft
from brokerd.store.log.layout import file_name, file_start
from brokerd.store.put_status import PutStatus
from brokerd.store.queues.queue_reads import GetResult, GetStatus
from brokerd.store.settings import StoreSettings
from brokerd.transactions.decide import Outcome
from controllerd.replicas.records import LIVES_LEVEL, MasterElected, Record, SyncStateSetChanged
from controllerd.replicas.state import Group, ReplicasState
from controllerd.state.machine import ControllerMachine
from remoting.names import dead_letter_topic_of
from tests.sim.broker import GROUP
from tests.sim.clients import QUEUES, TOPIC
from tests.sim.delays import check_delays
from tests.sim.poppers import POP_GROUP
from tests.sim.records import look_at, units_of
from tests.sim.transactors import TRANSACTION_TOPIC

if TYPE_CHECKING:
    from tests.sim.broker import SimBroker
    from tests.sim.cluster import SimCluster
    from tests.sim.controller import SimController
    from tests.sim.side_group import SideGroup
    from tests.support.disks import MemoryFile

    Cluster = SimCluster | SideGroup


_FETCH_LIMIT_MS: Final = 20_000


class Truth:
    """The controllers' state as their log decides it, applied once; every controller must agree with it."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._require = cluster.world.require
        self._machine = ControllerMachine({"replicas": self._recorded})
        self._entries: list[tuple[bool, bytes]] = []  # of index 1 on
        self._states: dict[int, bytes] = {0: self._machine.snapshot()}
        self._masters: dict[tuple[str, int], int] = {}
        self._codes: dict[tuple[str, int], str] = {}
        self.elections = 0

    @property
    def counts_lives(self) -> bool:
        """Whether the controllers agree on which lives of brokers are members."""
        return self._machine.features.level >= LIVES_LEVEL

    @property
    def group(self) -> Group | None:
        return self.group_of(GROUP)

    def group_of(self, name: str) -> Group | None:
        """One of the groups that the controllers decide about."""
        return self._machine.replicas.groups.get(name)

    def decided(self, controller: SimController, index: int, is_decision: bool, data: bytes) -> None:
        """A controller is about to apply an entry; those that are no decisions are the group's own."""
        entry = (is_decision, data)
        if index <= len(self._entries):
            first = self._entries[index - 1]
            self._require(first == entry, f"{controller.name} applies another entry at {index} than others did")
            return
        self._require(index == len(self._entries) + 1, f"{controller.name} skips to entry {index}")
        self._entries.append(entry)
        if is_decision:
            before = self._machine.replicas.groups
            try:
                self._machine.apply(data)
            except (AssertionError, KeyError) as error:
                self._require(False, f"what was decided at {index} contradicts the entries before it: {error!r}")
            for name, group in self._machine.replicas.groups.items():
                if before.get(name) is not group:
                    self._check_change(before.get(name), group, self._cluster.ids_of(name))
        self._states[index] = self._machine.snapshot()

    def applied(self, controller: SimController, index: int, machine: ControllerMachine) -> None:
        """A controller has applied or restored everything up to an index."""
        known = self._states.get(index)
        self._require(
            known == machine.snapshot(), f"{controller.name} has another state at {index} than its records give"
        )

    def _recorded(self, record: Record | None, _state: ReplicasState) -> None:
        note = self._cluster.world.note
        if isinstance(record, MasterElected):
            self.elections += record.broker_name == GROUP
            epoch, master = record.master_epoch, record.broker_id
            known = self._masters.setdefault((record.broker_name, epoch), master)
            self._require(known == master, f"epoch {epoch} of {record.broker_name} has two masters")
            note(f"decided: broker {master} is master of epoch {epoch}{_of(record.broker_name)}")
        elif isinstance(record, SyncStateSetChanged):
            note(f"decided: the sync-state set is {list(record.sync_state_set)}{_of(record.broker_name)}")

    def _check_change(self, before: Group | None, after: Group, ids: Mapping[int, SimBroker]) -> None:
        """`ids` are the group's brokers by what their disks hold."""
        for broker_id, replica in after.replicas.items():
            first = self._codes.setdefault((after.broker_name, broker_id), replica.register_check_code)
            self._require(first == replica.register_check_code, f"broker id {broker_id} was given out twice")
        members = set(after.sync_state_set)
        learners = [each for each in members if each in ids and ids[each].settings.learner]
        self._require(not learners, f"the set {sorted(members)} holds the learners {learners}")
        self._require(members <= set(after.replicas), f"the set {sorted(members)} holds ids that are not registered")
        self._require(
            after.master_broker_id is None or after.master_broker_id in members, "the master is not in the set"
        )
        if before is None:
            return
        self._require(after.master_epoch >= before.master_epoch, "a master epoch went back")
        changed = after.sync_state_set_epoch - before.sync_state_set_epoch
        most = 2 if after.master_epoch > before.master_epoch else 1  # an election, and who stays in the set
        self._require(0 <= changed <= most, f"the epoch of the set moved by {changed}")
        self._require(changed > 0 or after.sync_state_set == before.sync_state_set, "a set changed within its epoch")
        joined = members - set(before.sync_state_set)
        if changed and after.master_epoch == before.master_epoch:
            self._cluster.happened("join" if joined else "leave", ids.get(min(joined, default=-1)))
        master = after.master_broker_id
        if master is not None and after.master_epoch > before.master_epoch and before.had_master:
            self._require(
                master in before.sync_state_set or _gives_way(before.sync_state_set, master, ids),
                f"broker {master} was elected from outside of {before.sync_state_set}",
            )


def _of(group: str) -> str:
    return "" if group == GROUP else f" of {group}"


def _gives_way(members: Sequence[int], elected_id: int, ids: Mapping[int, SimBroker]) -> bool:
    """Whether the set's last member lost the end of its log, and the elected broker has all that is left of it: the rule of
    `in_place_of_the_last`, by what both had when they last ran."""
    last, elected = (ids.get(each) for each in (members[0], elected_id))
    if len(members) > 1 or last is None or elected is None:
        return False
    left, held = (
        (each.driver.machine.epochs.last_epoch, each.core.store.commitlog.end_offset) for each in (last, elected)
    )
    return left <= held


class Promises:
    """What brokers tell their clients, looked at in the moment in which they say it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._ackers: dict[int, str] = {}
        self.looked_up = 0  # records that were looked up on the disks of members of the set

    def answered(self, broker: SimBroker, drafts: Sequence[Draft], outcomes: Sequence[SendOutcome]) -> None:
        """A broker answers a send: one master per epoch does, and every electable replica has it on its disk."""
        acknowledged = [
            (bytes(draft.body), outcome.physical_offset)
            for draft, outcome in zip(drafts, outcomes, strict=True)
            if outcome.status is PutStatus.PUT_OK
        ]
        if acknowledged:
            self.acknowledged(broker, broker.driver.machine.master_epoch, acknowledged)

    def acknowledged(self, broker: SimBroker, epoch: int, messages: Sequence[tuple[bytes, int]]) -> None:
        """A broker acknowledges what it stored in that epoch, bodies with their offsets."""
        require = self._cluster.world.require
        first = self._ackers.setdefault(epoch, broker.name)
        require(first == broker.name, f"{first} and {broker.name} both acknowledged in epoch {epoch}")
        members = self._cluster.members
        if not broker.settings.ack_after_flush:
            return
        holders = [holder for each in members if (holder := self._cluster.ids.get(each)) is not None]
        holders = [holder for holder in holders if holder not in self._cluster.rotten]
        for body, offset in messages:
            for holder in holders:
                self.looked_up += 1
                if not any(
                    _has_on_disk(holder.store_settings, each, offset, body) for each in self._directories(holder)
                ):
                    self._cluster.world.broken(
                        f"{broker.name} acknowledged offset {offset} in epoch {epoch}, and {holder.name}, which "
                        f"is in the set {sorted(members)}, does not have it on its disk"
                    )

    def _directories(self, holder: SimBroker) -> list[dict[str, MemoryFile]]:
        """Those of its id: it may be another process that has it, on a copy of the holder's, or one that was put aside."""
        processes = [holder, *self._cluster.second_processes.get(holder, ())]
        return [*(each.disk.files for each in processes), *self._cluster.put_aside.get(holder, ())]

    def became_master(self, broker: SimBroker) -> None:
        """A new master knows every offset that a consumer was told is committed, and every message that it was told is acked."""
        for (group, queue_id), offset in self._cluster.history.committed.items():
            known = broker.core.metadata.consumer_offset(group, TOPIC, queue_id)
            self._cluster.world.require(
                known is not None and known >= offset,
                f"{broker.name} becomes master with offset {known} of {group}; {offset} was committed",
            )
        finished = self._cluster.history.finished_places
        for queue in broker.core.pop.ledger.queues_of(POP_GROUP, TOPIC):
            for batch in queue.batches.values():
                if batch.is_leaving:  # the broker's own until its copy is stored, so nobody gets it again
                    continue
                again = [offset for offset in batch.remaining_offsets() if (0, queue.queue_id, offset) in finished]
                self._cluster.world.require(
                    not again,
                    f"{broker.name} becomes master and does not know that {again} of {queue.queue_id} are acked",
                )


def check_broker_alone(cluster: Cluster, broker: SimBroker) -> None:
    """Log, queues and tables of one broker agree."""
    require = cluster.world.require
    store = broker.core.store
    log = store.commitlog
    require(store.dispatch_offset == log.end_offset, f"{broker.name} did not dispatch its whole log")
    expected, damaged_at, gap, firsts = units_of(read_log(broker), log.min_offset, log.shape)
    require(damaged_at is None, f"the log of {broker.name} is damaged at {damaged_at}")
    require(not gap, f"{broker.name}: {gap}")
    gone = {name for name in cluster.history.topics if broker.core.metadata.topic(name) is None}
    for (topic, queue_id), units in expected.items():
        first = firsts.get((topic, queue_id), 0)
        found = [unit[:2] for unit in store.read_units(topic, queue_id, first, len(units) + 10)]
        if topic in cluster.history.topics:
            # What an earlier topic of the name left in the log must not be in the queue; when the queue is empty, that is it.
            require(found in (units, []), f"{broker.name}: the queue of {topic} is not what the log says")
            require(topic not in gone or not found, f"{broker.name}: the deleted topic {topic} has a queue")
        else:
            require(found == units, f"{broker.name}: queue {topic}/{queue_id} is not what the log says")
    for key, queue in store.queues.table.items():
        is_gone = log.min_offset > 0 and queue.min_offset(log.min_offset) == queue.max_offset
        require(
            key in expected or queue.max_offset == 0 or is_gone, f"{broker.name}: the log knows nothing of queue {key}"
        )
    fresh = MetadataTables()
    records = broker.core.metadata.journal
    require(records.applied_offset <= log.end_offset, f"{broker.name} applied records beyond its log")
    for row in broker.core.metadata.tables.snapshot_rows():
        fresh.load_row(row)
    require(
        list(fresh.snapshot_rows()) == list(broker.core.metadata.tables.snapshot_rows()),
        f"{broker.name}: a snapshot of its tables is not its tables",
    )


def check_end(cluster: SimCluster) -> None:
    """Everything was healed and has settled: what was promised holds, on every replica."""
    _check_at_rest(cluster)
    for broker in cluster.brokers:
        for queue_id in range(QUEUES):
            _check_queue(cluster, broker, queue_id)
        _check_topics(cluster, broker)
        _check_offsets(cluster, broker)
        _check_transactions(cluster, broker)
        check_delays(cluster, broker)
    _check_counts(cluster)
    _check_dead_letters(cluster)


def check_messages(group: SideGroup) -> None:
    """The same of a group whose clients only send, read and commit."""
    _check_at_rest(group)
    for broker in group.brokers:
        for queue_id in range(QUEUES):
            _check_queue(group, broker, queue_id)
        _check_offsets(group, broker)
    _check_counts(group)


def _check_at_rest(cluster: Cluster) -> None:
    """What is true only while nothing is on its way from one broker to another, or into queues. It is looked at first: what is
    read from a tier takes time, in which brokers go on with what is due."""
    for broker in cluster.brokers:
        cluster.world.require(not broker.waiting, f"{broker.name} left {broker.waiting} sends without an answer")
        check_broker_alone(cluster, broker)
    _check_replicas(cluster)


def _check_queue(cluster: Cluster, broker: SimBroker, queue_id: int) -> None:
    broken = cluster.world.broken
    history = cluster.history
    bodies = read_queue(cluster, broker, TOPIC, queue_id)
    for body, places in history.acknowledged.items():
        for queue, offset in places:
            if queue == queue_id:
                held = bodies[offset] if offset < len(bodies) else b""
                if held != body:
                    broken(f"{broker.name} lost {body[:20]!r}, acknowledged at offset {offset} of {queue_id}")
    for (queue, offset), body in history.seen.items():
        if queue == queue_id:
            held = bodies[offset] if offset < len(bodies) else b""
            if held != body:
                broken(f"{body[:20]!r} was read and is not at offset {offset} of {broker.name} any more")


def _check_counts(cluster: Cluster) -> None:
    """Nothing was invented, and a message is there at most once per attempt that may have stored it."""
    history = cluster.history
    stored = Counter(
        body for queue_id in range(QUEUES) for body in read_queue(cluster, cluster.brokers[0], TOPIC, queue_id)
    )
    for body, count in stored.items():
        if body not in history.attempts:
            cluster.world.broken(f"{body[:20]!r} is stored, and nobody sent it")
        most = history.attempts[body]
        if count > most:
            cluster.world.broken(f"{body[:20]!r} is stored {count} times after {most} attempts")


def _check_topics(cluster: SimCluster, broker: SimBroker) -> None:
    """A topic that was made again holds what was sent to it since then, and nothing older."""
    require = cluster.world.require
    for topic in cluster.history.topics.values():
        if not topic.is_settled:
            continue
        found = broker.core.metadata.topic(topic.name) is not None
        word = "exists" if topic.exists else "is deleted"
        require(found == topic.exists, f"{topic.name} {word}, but {broker.name} says otherwise")
        bodies = read_queue(cluster, broker, topic.name, 0)
        if not topic.exists:
            continue
        for body in bodies:
            require(
                body in topic.sent,
                f"{broker.name} has {body!r} in {topic.name}, which is of generation {topic.generation}",
            )
        for body, (_, offset) in topic.acknowledged.items():
            held = bodies[offset] if offset < len(bodies) else b""
            require(held == body, f"{broker.name} lost {body!r} of {topic.name}, acknowledged at {offset}")
        for body, count in Counter(bodies).items():
            require(count <= topic.sent[body], f"{broker.name} has {body!r} {count} times")


def _check_transactions(cluster: SimCluster, broker: SimBroker) -> None:
    """What was committed is there, once unless a master went; what was rolled back is not; nothing is left open."""
    require, history = cluster.world.require, cluster.history
    require(not len(broker.core.transactions.table), f"{broker.name} has transactions that are over everywhere else")
    delivered = Counter(read_queue(cluster, broker, TRANSACTION_TOPIC, 0))
    for body in delivered:
        require(
            history.wanted.get(body) is Outcome.COMMIT,
            f"{broker.name} delivers {body[:20]!r}, which was to end as {history.wanted.get(body)!r}",
        )
    for body in sorted(history.begun):
        if history.wanted[body] is Outcome.COMMIT:
            require(bool(delivered[body]), f"{broker.name} lost the committed {body[:20]!r}")
    if not cluster.interruptions:
        twice = [body for body, count in delivered.items() if count > 1]
        require(not twice, f"{broker.name} delivers {len(twice)} committed messages twice, though its master stayed")


def open_transactions(cluster: SimCluster) -> str:
    """Which transactions the master has open; "" = none."""
    master = cluster.master()
    if master is None:
        return "there is no master"
    if master.core.store.dispatch_offset != master.core.store.commitlog.end_offset:
        return "there may be more of them behind what was dispatched"
    table = master.core.transactions.table
    return f"{len(table)}, the oldest with {table.oldest}" if len(table) else ""


def _check_offsets(cluster: Cluster, broker: SimBroker) -> None:
    history = cluster.history
    for key in history.asked:
        group, queue_id = key
        known = broker.core.metadata.consumer_offset(group, TOPIC, queue_id)
        least = history.committed.get(key, -1)
        cluster.world.require(
            least <= (-1 if known is None else known) <= history.asked[key],
            f"{broker.name} has offset {known} of {group}; {least} was committed, {history.asked[key]} the highest asked for",
        )


def _epochs(broker: SimBroker, begin: int) -> list[EpochEntry]:
    """Those that the log has bytes of behind its begin: one that begins at its end is known to who just became master, and soon
    to others."""
    end_offset = broker.core.store.commitlog.end_offset
    entries = broker.driver.machine.epochs.entries
    covered = [each for each in entries if each.start_offset <= begin][:-1]  # all of it is before the begin
    return [each for each in entries if each.start_offset < end_offset and each not in covered]


def _check_replicas(cluster: Cluster) -> None:
    """All replicas have the same log, the same epochs and the same tables."""
    require = cluster.world.require
    first, *others = cluster.brokers
    for other in others:
        require(log_of(first).agrees(log_of(other)), f"the logs of {first.name} and {other.name} differ")
        begin = max(each.core.store.commitlog.min_offset for each in (first, other))
        entries = _epochs(first, begin), _epochs(other, begin)
        require(entries[0] == entries[1], f"the epochs of {first.name} and {other.name} differ: {entries}")
        rows = [sorted(map(repr, each.core.metadata.tables.snapshot_rows())) for each in (first, other)]
        require(rows[0] == rows[1], f"the tables of {first.name} and {other.name} differ: {rows}")
        rows = [_pop_rows(each) for each in (first, other)]
        require(rows[0] == rows[1], f"the pop ledgers of {first.name} and {other.name} differ: {rows}")


def _pop_rows(broker: SimBroker) -> list[str]:
    """The replicated pop state; when a batch is due is the master's own (it shortens and renews), so it is left out."""
    rows = broker.core.pop.ledger.snapshot_rows()
    return sorted(repr([*row[:6], *row[7:]] if row[0] == "b" else row) for row in rows)


def pops_left(cluster: SimCluster) -> str:
    """What the consumer has not finished although it had the time to; "" = nothing."""
    history = cluster.history
    finished = history.finished.keys() | history.perhaps_finished
    missing = history.acknowledged.keys() - finished
    if missing:
        return f"{len(missing)} acknowledged messages were never finished, such as {min(missing)[:20]!r}"
    master = cluster.master()
    if master is None:
        return "there is no master"
    store = master.core.store
    if store.dispatch_offset != store.commitlog.end_offset:
        return "what comes back may be in the log already and in no queue yet"
    in_flight = master.core.pop.ledger.in_flight(POP_GROUP)
    if in_flight:
        return f"{in_flight} messages are still on their way although all were finished"
    for topic, queue_id in master.core.pop.ledger.popped_queues(POP_GROUP):
        done = master.core.pop.ledger.committed_offset(POP_GROUP, topic, queue_id)
        end = master.core.store.max_offset(topic, queue_id)
        if done != end:
            return f"{topic}/{queue_id} is finished up to {done} of {end}"
    return ""


class HeldLog(NamedTuple):
    """What a broker has of its log, from `start` on; the rest of it is in the tier, where there is one."""

    start: int
    content: bytes

    def agrees(self, other: HeldLog) -> bool:
        """Whether both end alike, and are the same where both have it."""
        start = max(self.start, other.start)
        return self.behind(start) == other.behind(start)

    def goes_on(self, before: HeldLog) -> bool:
        """Whether this is what it was before, maybe with more at its end and less at its begin."""
        start = max(self.start, before.start)
        return self.behind(start).startswith(before.behind(start))

    def behind(self, start: int) -> bytes:
        return self.content[start - self.start :]


def log_of(broker: SimBroker) -> HeldLog:
    return HeldLog(broker.core.store.commitlog.min_offset, read_log(broker))


def read_log(broker: SimBroker) -> bytes:
    log = broker.core.store.commitlog
    parts = []
    position = log.min_offset
    while position < log.end_offset:
        part = bytes(log.read(position, 1 << 20))
        parts.append(part)
        position += len(part)
    return b"".join(parts)


def _check_dead_letters(cluster: SimCluster) -> None:
    """What was given up is in the dead-letter topic once, and what was acked is not."""
    history, require = cluster.history, cluster.world.require
    dead = Counter(read_queue(cluster, cluster.brokers[0], dead_letter_topic_of(POP_GROUP), 0))
    missing = history.given_up - dead.keys()
    require(not missing, f"{len(missing)} dead letters are not there, such as {sorted(missing)[:1]}")
    sent_once = [body for body in dead if history.attempts[body] == 1]
    again = [body for body in sent_once if dead[body] > 1]
    require(not again, f"{len(again)} dead letters are there twice, such as {sorted(again)[:1]}")
    acked = [body for body in sent_once if body in history.finished and body not in history.given_up]
    require(not acked, f"{len(acked)} acked messages are dead letters as well, such as {sorted(acked)[:1]}")


def read_queue(cluster: Cluster, broker: SimBroker, topic: str, queue_id: int) -> list[bytes]:
    store = broker.core.store
    bodies: list[bytes] = []
    while len(bodies) < store.max_offset(topic, queue_id):
        records = fetch(cluster, broker, topic, queue_id, len(bodies)).records
        cluster.world.require(bool(records), f"{topic}/{queue_id} of {broker.name} ends early, at {len(bodies)}")
        for encoded in records:
            record, is_intact = look_at(encoded)
            if not is_intact:
                cluster.world.broken(f"{topic}/{queue_id} of {broker.name} holds a damaged message")
            if record.queue_offset != len(bodies):
                cluster.world.broken(
                    f"{topic}/{queue_id} of {broker.name} has offset {record.queue_offset} at {len(bodies)}"
                )
            bodies.append(record.body)
    return bodies


def fetch(cluster: Cluster, broker: SimBroker, topic: str, queue_id: int, offset: int) -> GetResult:
    """Messages from there on, at once if they are in the files, and when they have come if they are in the tier."""
    found = broker.core.store.read_messages(topic, queue_id, offset, 1000, 1 << 30)
    if found.status is not GetStatus.BEING_FETCHED:
        return found
    results = [found]

    def is_there() -> bool:
        results.append(broker.core.store.read_messages(topic, queue_id, offset, 1000, 1 << 30))
        return results[-1].status is not GetStatus.BEING_FETCHED

    is_over = cluster.world.run_until(is_there, _FETCH_LIMIT_MS, every=20)
    cluster.world.require(is_over, f"{broker.name} fetches {offset} of {topic}/{queue_id} from the tier for ever")
    return results[-1]


def _has_on_disk(settings: StoreSettings, files: Mapping[str, MemoryFile], physical_offset: int, body: bytes) -> bool:
    """Whether the record at the offset is on the platter, with that body."""
    start = file_start(physical_offset, settings.segment_size_bytes)
    file = files.get(f"commitlog/{file_name(start)}")
    if file is None:
        return False
    length = int.from_bytes(file.platter.read(physical_offset - start, 4), "big")
    if not 0 < length <= settings.max_record_bytes:
        return False
    return body in file.platter.read(physical_offset - start, length)
