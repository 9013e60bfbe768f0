"""Each check holds for a healthy run, and is shown to fail for the fault that it is there to find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from remoting.record.codec import Record, decode_record, encode_record
from remoting.record.hosts import pack_host
from remoting.record.properties import encode_properties
from tests.chaos.addresses import ip_of
from tests.chaos.checks import CHECKS, GRPC_CLIENT, POPPING, PULLING, Aftermath, ControllerLog, LogCopy, Recovery
from tests.chaos.history import (
    SET_LOST,
    BrokerView,
    Delivery,
    FaultWindow,
    History,
    Kind,
    Operation,
    Outcome,
    Read,
    View,
    body_of,
    message_name,
)
from tests.chaos.plan import DiskRule, Faults
from tests.chaos.recovery import (
    KILL_LIMIT_S,
    MASTER_SILENT_LIMIT_S,
    MASTER_STANDS_LIMIT_S,
    REPLICA_SILENT_LIMIT_S,
    limit_of,
    longest_pause,
)
from tests.chaos.scenarios import SCENARIOS, Scenario
from tests.chaos.test_plan import ROLES
from tests.chaos.verdict import in_force as in_force_problems
from tests.chaos.verdict import judge, kept_promises

RECORD_BYTES = 1000  # as the copies of logs here pretend


def record(name: str, offset: int, broker: str = "b0", **changes: object) -> Record:
    _, key, _ = name.split("|")
    fields: dict[str, object] = {
        **{"topic": b"Orders", "queue_id": 0, "queue_offset": offset, "physical_offset": offset * RECORD_BYTES},
        **{"body": body_of(name), "properties": encode_properties({"KEYS": key, "UNIQ_KEY": name})},
        **{"born_timestamp_ms": 1, "born_host": pack_host(ip_of("cl"), 1), "store_timestamp_ms": 2},
        "store_host": pack_host(ip_of(broker), 10911),
    }
    return decode_record(encode_record(**{**fields, **changes}))  # type: ignore[arg-type]


def send(
    number: int, outcome: Outcome = Outcome.OK, broker: str = "b0", client: str = "p0", key: str = "k"
) -> Operation:
    name = message_name(client, key, number)
    offset = number if outcome is Outcome.OK else -1
    return Operation(client, Kind.SEND, number, number + 0.5, outcome, broker, name, 0, offset)


def delivery(client: str, number: int, offset: int, start_s: float = 1.0) -> Delivery:
    return Delivery(client, start_s, start_s + 0.1, body_of(message_name("p0", "k", number)), 0, offset)


def healthy() -> tuple[History, Aftermath]:
    """Ten messages: 0 to 4 by b0 in epoch 1, then b1 in epoch 2; all consumed; one more refused, one unknown and stored."""
    sends = [send(n, broker="b0" if n < 5 else "b1") for n in range(10)]
    unknown, refused = send(10, Outcome.UNKNOWN, "b1"), send(11, Outcome.FAILED, "b1")
    history = History(operations=[*sends, unknown, refused])
    history.deliveries += [delivery(client, n, n) for client in (PULLING, POPPING) for n in range(11)]
    history.operations += [
        Operation(POPPING, Kind.ACK, 2.0, 2.1, Outcome.OK, "b0", message_name("p0", "k", n)) for n in range(11)
    ]
    letter = message_name(GRPC_CLIENT, "g", 0)
    history.operations.append(Operation(GRPC_CLIENT, Kind.SEND, 3.0, 3.1, Outcome.OK, message=letter))
    history.deliveries.append(Delivery(GRPC_CLIENT, 3.2, 3.3, body_of(letter), -1, -1))
    history.operations += [
        Operation(PULLING, Kind.PULL, 3.8, 3.9, Outcome.OK, "b0", queue_id=0, value=5),
        Operation(POPPING, Kind.POP, 1.0, 1.1, Outcome.OK, "b0", value=11),
        Operation(PULLING, Kind.COMMIT, 4.0, 4.1, Outcome.OK, "b0", queue_id=0, value=5),
        Operation(PULLING, Kind.COMMITTED, 5.0, 5.1, Outcome.OK, "b1", queue_id=0, value=5),
    ]
    members = ("b0", "b1", "b2")
    history.views += [
        View(0.0, 0.1, "c0", True, 1, 1, 3, "b0", members),
        View(5.0, 5.1, "c0", True, 1, 2, 4, "b1", members),
    ]
    history.broker_views += [
        BrokerView(0.0, 0.1, "b0", "master", 1, 5000, 5000, (("pulling Orders", 0, 5),), (("Orders", 0, 5),)),
        BrokerView(6.0, 6.1, "b0", "slave", 2, 11_000, 11_000, (("pulling Orders", 0, 5),), (("Orders", 0, 11),)),
    ]
    history.reads += [Read(0.0, 0.1, "c0", 1, 3), Read(0.05, 0.3, "c1", 1, 3), Read(5.2, 5.3, "c0", 2, 4)]
    records = [record(message_name("p0", "k", n), n, "b0" if n < 5 else "b1") for n in range(11)]
    content = bytes(range(256)) * 43
    epochs = [(1, 0), (2, 5000)]
    commands = [(1, b"a"), (1, b"b"), (1, b"c")]
    return history, Aftermath(
        records={0: records},
        grpc_records={0: [record(letter, 0)]},
        logs={
            "b0": LogCopy(0, content, epochs),
            "b1": LogCopy(0, content + b"more", epochs),
            "b2": LogCopy(100, content[100:], epochs),
        },
        controller_logs={
            "c0": ControllerLog(1, commands),
            "c1": ControllerLog(1, commands[:2]),
            "c2": ControllerLog(2, commands[1:]),
        },
        stop_codes={"b0": 0, "c0": 0},
        rejoined_s=(1.5,),
        recoveries=(Recovery("M1 #1", 0.4, 3.0, "a connection closes"), Recovery("L1 #1", None, None)),
    )


@pytest.mark.parametrize("name", CHECKS)
def test_a_healthy_run_passes(name: str) -> None:
    assert CHECKS[name](*healthy()) == []


Damage = Callable[[History, Aftermath], None]


def lose_a_message(history: History, aftermath: Aftermath) -> None:
    kept = [each for each in aftermath.records[0] if each.queue_offset != 4]
    aftermath.records = {0: kept}


def never_consume(client: str) -> Damage:
    def damage(history: History, aftermath: Aftermath) -> None:
        history.deliveries[:] = [each for each in history.deliveries if each.client != client]

    return damage


def change_record(place: int, make: Callable[[Record], Record]) -> Damage:
    def damage(history: History, aftermath: Aftermath) -> None:
        records = list(aftermath.records[0])
        records[place] = make(records[place])
        aftermath.records = {0: records}

    return damage


def add_records(*names: str) -> Damage:
    def damage(history: History, aftermath: Aftermath) -> None:
        records = list(aftermath.records[0])
        aftermath.records = {0: records + [record(name, len(records) + n) for n, name in enumerate(names)]}

    return damage


def deliver(extra: Delivery) -> Damage:
    def damage(history: History, aftermath: Aftermath) -> None:
        history.deliveries.append(extra)

    return damage


def change_log(name: str, log: Callable[[LogCopy], LogCopy]) -> Damage:
    def damage(history: History, aftermath: Aftermath) -> None:
        aftermath.logs = {**aftermath.logs, name: log(aftermath.logs[name])}

    return damage


def add(kind: str, item: object) -> Damage:
    def damage(history: History, aftermath: Aftermath) -> None:
        getattr(history, kind).append(item)

    return damage


def set_aftermath(**changes: object) -> Damage:
    def damage(history: History, aftermath: Aftermath) -> None:
        for name, value in changes.items():
            setattr(aftermath, name, value)

    return damage


def reverse_two(history: History, aftermath: Aftermath) -> None:
    """Messages 2 and 3 of one key trade places, in the log and in the answers."""
    records = list(aftermath.records[0])
    names = [message_name("p0", "k", n) for n in (3, 2)]
    records[2:4] = [record(names[0], 2), record(names[1], 3)]
    aftermath.records = {0: records}
    history.operations[2], history.operations[3] = (
        history.operations[2]._replace(value=3),
        history.operations[3]._replace(value=2),
    )


def flip(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


FIFTH = message_name("p0", "k", 4)
DAMAGES: list[tuple[str, Damage]] = [
    ("K1", lose_a_message),
    ("K1", never_consume(PULLING)),
    ("K1", never_consume(POPPING)),
    ("K1", never_consume(GRPC_CLIENT)),
    ("K2", change_record(1, lambda each: each._replace(body=each.body[:-1]))),
    ("K2", change_record(1, lambda each: each._replace(properties=b""))),
    ("K2", add_records(message_name("p9", "k", 0))),
    ("K2", add_records(message_name("p0", "k", 3))),
    ("K2", add_records(message_name("p0", "k", 11))),
    ("K2", deliver(Delivery(PULLING, 1, 2, body_of("p0|k|1")[:-3], 0, 1))),
    ("K2", deliver(Delivery(PULLING, 1, 2, body_of("p7|k|1"), 0, 1))),
    ("K3", change_log("b1", lambda log: replace(log, content=flip(log.content, 700)))),
    ("K3", change_log("b2", lambda log: replace(log, epochs=[(1, 0), (2, 5001)]))),
    ("K3", change_log("b2", lambda log: replace(log, start=log.end))),
    ("K3", set_aftermath(logs={})),
    ("K4", lose_a_message),
    ("K4", reverse_two),
    ("K4", change_record(3, lambda each: each._replace(body=body_of(message_name("p0", "k", 10))))),
    ("K4", deliver(delivery(PULLING, 7, 3))),
    ("K5", add("operations", send(10, broker="b0")._replace(value=10))),
    ("K5", change_record(4, lambda each: each._replace(store_host=pack_host(ip_of("b2"), 10911)))),
    ("K5", add("views", View(7.0, 7.1, "c2", True, 1, 2, 4, "b2", ()))),
    ("K5", set_aftermath(logs={})),
    (
        "K6",
        add("broker_views", BrokerView(8, 8.1, "b1", "master", 2, 9, 9, (("g Orders", 0, 12),), (("Orders", 0, 11),))),
    ),
    ("K6", add("operations", Operation(PULLING, Kind.COMMITTED, 9, 9.1, Outcome.OK, "b1", queue_id=0, value=4))),
    ("K7", set_aftermath(controller_logs={"c0": ControllerLog(1, [(1, b"a")]), "c1": ControllerLog(1, [(1, b"x")])})),
    ("K7", set_aftermath(controller_logs={"c0": ControllerLog(1, [(1, b"a")]), "c1": ControllerLog(1, [(2, b"a")])})),
    ("K7", set_aftermath(controller_logs={})),
    ("K7", set_aftermath(controller_logs={"c0": ControllerLog(1, []), "c1": ControllerLog(1, [])})),
    ("K7", add("reads", Read(6.0, 6.1, "c2", 1, 3))),
    ("K8", add("views", View(9.0, 9.1, "c0", True, 2, 1, 4, "b0", ()))),
    ("K8", add("views", View(9.0, 9.1, "c0", True, 2, 2, 3, "b1", ()))),
    ("K8", add("broker_views", BrokerView(9.0, 9.1, "b0", "slave", 1, 0, 0, (), ()))),
    ("K9", set_aftermath(recoveries=[Recovery("M1 #1", 3.1, 3.0, "")])),
    ("K9", set_aftermath(recoveries=[Recovery("M1 #1", None, 3.0, "")])),
    ("K10", set_aftermath(exits={"b1": [1]})),
    ("K10", set_aftermath(stop_codes={"c1": -9})),
    ("K10", set_aftermath(rejoined_s=[1.0, None])),
    ("POP", deliver(delivery(POPPING, 4, 4, start_s=2.5))),
]


@pytest.mark.parametrize(("name", "damage"), DAMAGES, ids=[f"{name}-{n}" for n, (name, _) in enumerate(DAMAGES)])
def test_a_damaged_run_does_not_pass(name: str, damage: Damage) -> None:
    history, aftermath = healthy()
    damage(history, aftermath)
    assert CHECKS[name](history, aftermath)


def test_every_check_was_seen_to_fail() -> None:
    assert {name for name, _ in DAMAGES} == set(CHECKS)


def test_a_read_that_overlaps_a_newer_one_may_be_older() -> None:
    history, aftermath = healthy()
    history.reads.append(Read(5.25, 5.4, "c2", 1, 3))  # began before the newer answer was given
    assert CHECKS["K7"](history, aftermath) == []


def test_a_message_of_unknown_outcome_may_be_missing() -> None:
    history, aftermath = healthy()
    aftermath.records = {0: aftermath.records[0][:10]}
    history.deliveries[:] = [each for each in history.deliveries if each.queue_offset != 10]
    assert not any(check(history, aftermath) for check in CHECKS.values())


def test_only_a_full_disk_may_expire_messages() -> None:
    history, aftermath = healthy()
    aftermath.records = {0: aftermath.records[0][3:]}
    history.deliveries[:] = [each for each in history.deliveries if each.queue_offset != 2]
    assert CHECKS["K1"](history, aftermath)
    assert CHECKS["K4"](history, aftermath)
    aftermath.may_expire = True
    assert not CHECKS["K1"](history, aftermath)
    assert not CHECKS["K4"](history, aftermath)
    lose_a_message(history, aftermath)
    assert CHECKS["K1"](history, aftermath), "one behind the first that is left is lost"


# ---- the verdict


def scenario_like(**changes: object) -> Scenario:
    return replace(next(each for each in SCENARIOS if each.id == "M1"), **changes)  # type: ignore[arg-type]


def judged(scenario: Scenario, window: FaultWindow) -> dict[str, list[str]]:
    history, aftermath = healthy()
    many = [send(n, Outcome.UNKNOWN)._replace(start_s=5.0, end_s=6.0) for n in range(20, 60)]
    history.operations += many
    history.faults.append(window)
    return {name: list(found) for name, found in judge(scenario, history, aftermath).problems.items()}


def in_force(start_s: float = 3.0, end_s: float = 9.0) -> FaultWindow:
    return FaultWindow("M1 #1", start_s, end_s, {}, [("b0 is gone", True)])


def test_a_scenario_with_its_fault_in_force_passes() -> None:
    assert judged(scenario_like(), in_force()) == {}


def test_a_fault_that_was_not_in_force_is_no_success() -> None:
    window = in_force()
    window.note("b0 is gone at the end", False)
    assert "IN FORCE" in judged(scenario_like(), window)


def test_a_fault_that_nobody_looked_at_is_no_success() -> None:
    assert "IN FORCE" in judged(scenario_like(), replace(in_force(), evidence=[]))


def test_a_scenario_without_a_fault_is_no_success() -> None:
    history, aftermath = healthy()
    assert "IN FORCE" in judge(scenario_like(), history, aftermath).problems


def test_too_few_operations_are_no_success() -> None:
    assert "IN FORCE" in judged(scenario_like(), in_force(100.0, 101.0))


@pytest.mark.parametrize("kind", list(Kind))
def test_what_was_never_done_proves_nothing(kind: Kind) -> None:
    history, _ = healthy()
    history.faults.append(in_force())
    history.operations += [send(n, Outcome.UNKNOWN)._replace(start_s=5.0, end_s=6.0) for n in range(20, 60)]
    assert not in_force_problems(scenario_like(), history)
    history.operations[:] = [
        each for each in history.operations if each.kind is not kind or each.outcome is not Outcome.OK
    ]
    assert f"nobody saw or did this: a {kind} with success" in in_force_problems(scenario_like(), history)


@pytest.mark.parametrize("seen", ["views", "broker_views", "reads"])
def test_what_nobody_saw_proves_nothing(seen: str) -> None:
    history, _ = healthy()
    history.faults.append(in_force())
    getattr(history, seen).clear()
    assert any("nobody saw" in each for each in in_force_problems(scenario_like(), history))


def test_sends_must_succeed_during_a_fault_that_is_survived() -> None:
    assert "PROMISE" in judged(scenario_like(), in_force(9.6, 12.0))


def test_nothing_may_be_acknowledged_by_an_isolated_master() -> None:
    assert "PROMISE" in judged(scenario_like(refuses=True), in_force())


def test_an_answer_after_the_heal_is_none_during_the_fault() -> None:
    history, _ = healthy()
    history.operations[:] = [send(6)._replace(end_s=9.5)]  # begun in the fault, which ends at 9
    history.faults.append(in_force())
    assert kept_promises(scenario_like(refuses=True, recovers=False), history) == []
    assert kept_promises(scenario_like(), history) == ["M1 #1: no send was acknowledged during the fault"]


def test_an_answer_before_the_last_link_is_cut_is_none_during_the_fault() -> None:
    history, _ = healthy()
    history.operations[:] = [send(6)]
    window = in_force()
    history.faults.append(window)
    refusing = scenario_like(refuses=True, recovers=False)
    assert kept_promises(refusing, history)
    window.in_force_s = 6.2
    assert kept_promises(refusing, history) == []


def test_faults_of_controllers_alone_touch_no_send() -> None:
    assert "PROMISE" in judged(scenario_like(untouched=True), in_force())


def untouched_run() -> History:
    """One master, and nothing that failed."""
    history, _ = healthy()
    history.operations[:] = [each._replace(broker="b0") for each in history.operations if each.outcome is Outcome.OK]
    history.views[:] = history.views[:1]
    history.deliveries[:] = [each._replace(start_s=4.0) for each in history.deliveries]
    history.faults.append(in_force())
    return history


def test_an_untouched_run_passes_and_each_consumer_counts() -> None:
    scenario = scenario_like(untouched=True)
    assert kept_promises(scenario, untouched_run()) == []
    for client in (PULLING, POPPING, GRPC_CLIENT):
        history = untouched_run()
        history.deliveries[:] = [each for each in history.deliveries if each.client != client]
        assert kept_promises(scenario, history) == [f"M1 #1: the consumer {client} got nothing during the fault"]


def test_without_any_member_nobody_may_acknowledge() -> None:
    history, _ = healthy()
    window = in_force()
    window.details[SET_LOST] = ["b0", "b1"]
    history.faults.append(window)
    (problem,) = kept_promises(scenario_like(), history)
    assert "were acknowledged although every member of the set is down" in problem
    history.operations[:] = [each for each in history.operations if each.start_s < 6]
    assert kept_promises(scenario_like(), history) == []


def test_a_set_that_flaps_is_no_success() -> None:
    history, _ = healthy()
    history.faults.append(in_force())
    assert kept_promises(scenario_like(steadies=True), history) == []
    history.views.append(healthy()[0].views[1]._replace(end_s=8.0, set_epoch=20))
    assert kept_promises(scenario_like(steadies=True), history) == ["M1 #1: the set or the master changed 16 times"]


def test_an_election_without_need_is_no_success() -> None:
    history = untouched_run()
    history.views.append(healthy()[0].views[1])
    assert kept_promises(scenario_like(untouched=True), history) == ["the master changed: b0 (epoch 1) > b1 (epoch 2)"]


# ---- how long sends stood still


def test_the_limit_follows_from_what_was_hit() -> None:
    first, second = ROLES.replicas
    assert limit_of(Faults(kills=("b0", "b1", "c0")), ROLES)[0] == KILL_LIMIT_S
    assert limit_of(Faults(freezes=(ROLES.master,)), ROLES)[0] == MASTER_SILENT_LIMIT_S
    assert limit_of(Faults(freezes=(first, second)), ROLES)[0] == REPLICA_SILENT_LIMIT_S
    stands = DiskRule("/", ("sync",), stands=True)
    assert limit_of(Faults(disks={ROLES.master: stands}), ROLES)[0] == MASTER_STANDS_LIMIT_S
    assert limit_of(Faults(disks={first: stands}), ROLES)[0] == KILL_LIMIT_S


def test_a_pause_that_began_before_the_fault_counts_whole() -> None:
    history = History(operations=[send(n) for n in (0, 1, 2, 6, 7)])  # answered at n + 0.5
    assert longest_pause(history, 3.0, 8.0) == 4.0
    assert longest_pause(history, 3.0, 6.0) is None
    assert longest_pause(history, 0.0, 20.0) == 12.5, "nothing for the rest of the fault"
