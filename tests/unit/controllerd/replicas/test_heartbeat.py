"""Liveness with a clock that the test holds."""

from __future__ import annotations

import random

from controllerd.replicas.elect import explain_eligibility
from controllerd.replicas.heartbeat import Heartbeat, HeartbeatTable
from controllerd.replicas.requests import ElectMaster, Trigger
from controllerd.replicas.state import Group
from controllerd.replicas.triggers import due_elections, observe_for_request
from remoting import codes
from tests.unit.controllerd.replicas.builders import (
    CLUSTER,
    NAME,
    Machine,
    alter,
    elect,
    group_of,
    group_of_three,
    run,
    seen,
)


def beat(broker_id: int, connection: int = 1, **fields: int) -> Heartbeat:
    return Heartbeat(CLUSTER, NAME, broker_id, f"127.0.0.1:{10900 + broker_id}", connection, **fields)


def make_table() -> HeartbeatTable:
    return HeartbeatTable(grace_ms=2000, pause_ms=200, scan_ms=50, floor_intervals=4)


def make_live_group(now_ms: int = 10_000) -> tuple[Machine, HeartbeatTable]:
    machine, table = group_of_three(), make_table()
    for broker_id in (1, 2, 3):
        table.heartbeat(beat(broker_id, broker_id, epoch=1, max_offset=50), now_ms)
    return machine, table


def others_speak(table: HeartbeatTable, first_ms: int, last_ms: int, *broker_ids: int, **fields: int) -> None:
    """Heartbeats of these brokers, until the last moment."""
    for now_ms in (*range(first_ms, last_ms, 250), last_ms):
        for broker_id in broker_ids:
            table.heartbeat(beat(broker_id, broker_id, **(fields or {"epoch": 1, "max_offset": 50})), now_ms)


def due(machine: Machine, table: HeartbeatTable, now_ms: int) -> list[ElectMaster]:
    return due_elections(machine.state, table, now_ms, unclean=False)


def test_silence_is_death_after_the_broker_s_own_time_out() -> None:
    machine, table = make_live_group()
    group = group_of(machine)
    others_speak(table, 10_250, 12_001, 2)
    assert table.is_alive(group, 1, 12_000)
    assert not table.is_alive(group, 1, 12_001)
    assert table.is_dead(group, 1, 12_001)
    table.heartbeat(beat(1, timeout_ms=10_000), 13_000)
    assert table.is_alive(group, 1, 23_000)


def test_absurd_time_outs_are_bounded() -> None:
    machine, table = make_live_group()
    table.heartbeat(beat(1, timeout_ms=10**12), 20_000)
    assert not table.is_alive(group_of(machine), 1, 20_000 + 60_001)
    table.heartbeat(beat(2, 2, timeout_ms=-5), 20_000)
    assert table.is_alive(group_of(machine), 2, 20_200)


def test_a_closed_connection_is_death_at_once_but_only_the_latest_one_counts() -> None:
    machine, table = make_live_group()
    group = group_of(machine)
    table.heartbeat(beat(1, connection=9), 10_100)
    assert table.connection_closed(1, 0) == []
    assert table.is_alive(group, 1, 10_100)
    assert table.connection_closed(9, 0) == [(CLUSTER, NAME, 1)]
    assert table.is_dead(group, 1, 10_100)
    table.heartbeat(beat(1, connection=10), 10_200)
    assert table.is_alive(group, 1, 10_200)


def test_a_late_heartbeat_of_an_older_connection_does_not_take_the_entry_back() -> None:
    machine, table = make_live_group()
    table.heartbeat(beat(1, connection=9, epoch=1, max_offset=70), 10_100)
    table.heartbeat(beat(1, connection=1, epoch=1, max_offset=60), 10_150)
    table.connection_closed(1, 0)
    assert table.is_alive(group_of(machine), 1, 10_150)
    (first, *_) = table.observe(group_of(machine), 10_150)
    assert first.max_offset == 70


def test_offsets_may_go_back_within_an_incarnation_and_only_grow_without_one() -> None:
    machine, table = group_of_three(), make_table()
    table.heartbeat(beat(1, incarnation=5, epoch=2, max_offset=90), 0)
    table.heartbeat(beat(1, incarnation=5, epoch=2, max_offset=40), 1)
    table.heartbeat(beat(2, epoch=2, max_offset=90), 0)
    table.heartbeat(beat(2, epoch=2, max_offset=40), 1)
    assert [each.max_offset for each in table.observe(group_of(machine), 1)] == [40, 90]


def test_incarnations_are_compared_for_equality_only() -> None:
    """The directory is an older copy: the later connection tells which life is the present one, once the other one's closed."""
    machine, table = group_of_three(), make_table()
    table.heartbeat(beat(1, connection=1, incarnation=2000), 0)
    table.connection_closed(1, 5)
    assert table.heartbeat(beat(1, connection=2, incarnation=1000), 10)
    assert not table.heartbeat(beat(1, connection=1, incarnation=2000), 20)
    assert table.observe(group_of(machine), 20)[0].incarnation == 1000
    table.connection_closed(2, 0)
    table.heartbeat(beat(1, connection=1, incarnation=2000), 30)
    assert table.is_dead(group_of(machine), 1, 30)


def test_a_new_leader_gives_time_to_those_whom_it_never_heard() -> None:
    """Controllers that start together do not depose everybody."""
    machine, table = group_of_three(), make_table()
    table.lead(50_000)
    assert due(machine, table, 51_999) == []
    assert table.not_alive(group_of(machine), (1, 2, 3), 51_999) == ()
    table.heartbeat(beat(2), 51_000)
    (command,) = due(machine, table, 52_000)
    assert [each.broker_id for each in command.observed] == [2]


def test_a_master_whose_connection_closed_before_the_leader_led_gets_no_grace() -> None:
    machine, table = make_live_group()
    table.connection_closed(1, 0)
    table.lead(10_100)
    (command,) = due(machine, table, 10_100)
    assert [each.broker_id for each in command.observed] == [2, 3]
    assert run(machine, command).group.master_broker_id == 2  # type: ignore[union-attr]


def test_a_leader_that_listened_as_a_follower_judges_at_once() -> None:
    """Master and controller leader are cut off together: the next leader has heard the silence all the time."""
    machine, table = make_live_group()
    others_speak(table, 10_250, 12_500, 2, 3)
    table.lead(12_500)
    (command,) = due(machine, table, 12_500)
    assert [each.broker_id for each in command.observed] == [2, 3]


def test_after_a_pause_of_this_process_silence_is_not_held_against_brokers() -> None:
    machine, table = make_live_group()
    table.lead(0)
    assert not table.scan(10_000)
    assert not table.scan(10_050)
    assert table.scan(25_100) == 15_000, "SIGSTOP for fifteen seconds"
    table.heartbeat(beat(2, 2), 25_100)
    assert due(machine, table, 25_100) == []
    others_speak(table, 25_150, 27_000, 2, 3)
    assert due(machine, table, 27_000) == []
    others_speak(table, 27_000, 27_200, 2, 3)
    assert len(due(machine, table, 27_200)) == 1, "the master stays silent while others speak"


def test_a_leader_that_hears_nobody_deposes_nobody() -> None:
    """It is the controller that is cut off. The first voice afterwards says nothing about those still to come."""
    machine, table = make_live_group()
    for now_ms in range(10_000, 40_000, 50):
        table.scan(now_ms)
        assert due(machine, table, now_ms) == []
    table.heartbeat(beat(3, 3, epoch=1, max_offset=50), 40_000)
    assert due(machine, table, 40_000) == []
    others_speak(table, 40_250, 42_000, 3)
    assert due(machine, table, 42_000) == []
    others_speak(table, 42_001, 42_001, 3)
    (command,) = due(machine, table, 42_001)
    assert [each.broker_id for each in command.observed] == [3]


def test_one_slow_speaker_is_enough_to_make_silence_count() -> None:
    """Brokers that speak once a second: two of them, and one dies. Its time-out is not stretched by the pauses in between."""
    machine, table = group_of_three(), make_table()
    for now_ms in range(0, 20_000, 1000):
        for broker_id in (1, 2):
            table.heartbeat(beat(broker_id, broker_id, timeout_ms=10_000), now_ms)
    for now_ms in range(20_000, 29_001, 1000):
        table.heartbeat(beat(2, 2, timeout_ms=10_000), now_ms)
    assert not table.is_dead(group_of(machine), 1, 29_000)
    assert table.is_dead(group_of(machine), 1, 29_001)


def test_a_silent_master_without_a_successor_is_not_deposed() -> None:
    """Nothing is won by it: when the master speaks again it goes on, in its epoch."""
    machine, table = make_live_group()
    run(machine, elect(seen(1, 1, 50)))
    run(machine, alter([1], set_epoch=2))
    others_speak(table, 10_250, 13_000, 2, 3)
    assert table.is_dead(group_of(machine), 1, 13_000)
    assert due(machine, table, 13_000) == []
    table.connection_closed(1, 0)
    (command,) = due(machine, table, 13_000)
    run(machine, command)
    assert group_of(machine).master_broker_id is None


def test_a_regular_broker_is_found_dead_after_a_second_and_never_later_than_its_time_out() -> None:
    machine, table = group_of_three(), make_table()
    calm, rng = {"interval_ms": 250, "timeout_ms": 1500, "incarnation": 1}, random.Random(5)
    now_ms = 0
    for _ in range(100):
        now_ms += 250 + rng.randrange(5)
        for broker_id in (1, 2, 3):
            table.heartbeat(beat(broker_id, broker_id, **calm), now_ms)
    group = group_of(machine)
    others_speak(table, now_ms + 250, now_ms + 1001, 2, 3, **calm)
    assert table.is_alive(group, 1, now_ms + 1000)
    assert table.is_dead(group, 1, now_ms + 1001)
    now_ms += 1001
    for _ in range(100):
        now_ms += 250 + rng.choice((0, 0, 0, 600))
        for broker_id in (1, 2, 3):
            table.heartbeat(beat(broker_id, broker_id, **calm), now_ms)
    others_speak(table, now_ms + 250, now_ms + 1501, 2, 3, **calm)
    assert not table.is_dead(group, 1, now_ms + 1500), "on a harried machine the limit rises"
    assert table.is_dead(group, 1, now_ms + 1501), "and the time-out that the broker named is its end"


def test_a_new_life_of_a_broker_begins_with_nothing_known() -> None:
    machine, table = group_of_three(), make_table()
    for now_ms in range(0, 25_000, 250):
        table.heartbeat(beat(1, 1, interval_ms=250, timeout_ms=1500, incarnation=1), now_ms)
    silence = table.silence(group_of(machine), 1)
    assert silence is not None
    assert silence.limit_ms == 1000
    table.connection_closed(1, 25_000)
    table.heartbeat(beat(1, 2, interval_ms=250, timeout_ms=1500, incarnation=2), 25_000)
    silence = table.silence(group_of(machine), 1)
    assert silence is not None
    assert silence.limit_ms == 1500


def test_no_election_while_the_master_is_heard_in_time() -> None:
    machine, table = make_live_group()
    for now_ms in range(10_000, 60_000, 200):
        if now_ms % 1000 == 0:
            table.heartbeat(beat(1, 1), now_ms)
        table.scan(now_ms)
        assert due(machine, table, now_ms) == []


def test_a_lost_master_is_written_once_and_a_returning_member_is_elected() -> None:
    machine, table = make_live_group()
    for connection in (1, 2, 3):
        table.connection_closed(connection, 0)
    (command,) = due(machine, table, 13_000)
    run(machine, command)
    assert group_of(machine).master_broker_id is None
    assert due(machine, table, 13_200) == []
    table.heartbeat(beat(3, 7), 14_000)
    (command,) = due(machine, table, 14_000)
    run(machine, command)
    assert group_of(machine).master_broker_id == 3


def test_a_master_that_restarted_unnoticed_needs_an_election() -> None:
    machine, table = group_of_three(), make_table()
    run(machine, elect(seen(2, 1, 5, incarnation=21), trigger=Trigger.CONTROLLER))
    table.heartbeat(beat(2, 1, incarnation=21, epoch=2, max_offset=5), 0)
    assert due(machine, table, 0) == []
    table.connection_closed(1, 90)
    assert table.heartbeat(beat(2, 2, incarnation=22, epoch=2, max_offset=5), 100)
    (command,) = due(machine, table, 100)
    epoch = group_of(machine).master_epoch
    run(machine, command)
    assert (group_of(machine).master_broker_id, group_of(machine).master_epoch) == (2, epoch + 1)
    assert due(machine, table, 100) == []


def test_entries_that_nobody_renews_are_forgotten() -> None:
    _, table = make_live_group(now_ms=0)
    for now_ms in range(50, 3_600_050, 50):
        table.scan(now_ms)
    assert len(table) == 3
    for now_ms in range(3_600_050, 3_660_100, 50):
        table.scan(now_ms)
    assert len(table) == 0


def test_who_asks_for_an_election_does_not_depose_a_master_that_may_yet_be_heard() -> None:
    """A broker restarts while another controller has just become leader and the master's next heartbeat is under way."""
    machine, table = group_of_three(), make_table()
    table.lead(1_000)
    table.heartbeat(beat(2, 1, epoch=1, max_offset=99), 1_100)
    group = group_of(machine)
    observed = observe_for_request(group, table, 1_200)
    reply = run(machine, elect(*observed, wanted=2))
    assert reply.code == codes.CONTROLLER_MASTER_STILL_EXIST
    assert explain_eligibility(group, observed)[0].reason == "is the master"
    observed = observe_for_request(group, table, 3_000)
    assert run(machine, elect(*observed, wanted=2)).group.master_broker_id == 2  # type: ignore[union-attr]


def test_a_broker_says_nothing_new_with_most_heartbeats() -> None:
    _, table = make_live_group()
    assert not table.heartbeat(beat(1, 1, epoch=1, max_offset=60), 10_500)
    assert table.heartbeat(beat(1, 1, epoch=1, max_offset=60), 20_000), "it was silent and lives"
    table.connection_closed(1, 0)
    assert table.heartbeat(beat(1, 9, epoch=1, max_offset=60), 20_001), "it came back"


def test_an_id_belongs_to_the_process_that_is_heard_and_to_nobody_for_an_election() -> None:
    """A copied data directory: the second process is refused while the first lives, and nobody can know whose log was counted."""
    machine, table = group_of_three(), make_table()
    for broker_id in (1, 2, 3):
        table.heartbeat(beat(broker_id, broker_id, incarnation=broker_id, epoch=1, max_offset=50), 0)
    group = group_of(machine)
    assert table.other_process(group, 2, 77, 100) is not None
    assert table.other_process(group, 2, 2, 100) is None
    assert not table.heartbeat(beat(2, 9, incarnation=77, epoch=1, max_offset=90), 100)
    observed = {each.broker_id: each for each in table.observe(group, 100)}
    assert (observed[2].incarnation, observed[2].max_offset, observed[2].is_contested) == (2, 50, True)
    assert [each.is_contested for each in observed.values()] == [False, True, False]
    assert explain_eligibility(group, table.observe(group, 100))[1].reason.startswith("two processes claim its id")
    for broker_id in (1, 3):
        table.connection_closed(broker_id, 200)
    reply = run(machine, elect(*table.observe(group, 200)))
    assert reply.code == codes.CONTROLLER_ELECT_MASTER_FAILED
    table.connection_closed(9, 300)
    assert not any(each.is_contested for each in table.observe(group, 300)), "the second one is gone"
    assert run(machine, elect(*table.observe(group, 300))).group.master_broker_id == 2


def test_what_another_process_with_the_id_has_is_missing_in_a_log_that_has_less() -> None:
    """Another leader, who heard the copy first, counted that one: what it has may be acknowledged, and only it has it."""
    machine, table = group_of_three(), make_table()
    for broker_id in (1, 2, 3):
        table.heartbeat(beat(broker_id, broker_id, incarnation=broker_id, epoch=1, max_offset=50), 0)
    group = group_of(machine)
    table.heartbeat(beat(2, 9, incarnation=77, epoch=2, max_offset=95, confirm_offset=90), 100)
    table.connection_closed(9, 200)
    observed = {each.broker_id: each for each in table.observe(group, 200)}
    assert (observed[2].is_contested, observed[2].lost_tail) == (False, True)
    table.heartbeat(beat(2, 2, incarnation=2, epoch=1, max_offset=89), 300)
    assert table.observe(group, 300)[1].lost_tail, "there is more"
    table.heartbeat(beat(2, 2, incarnation=2, epoch=2, max_offset=90), 400)
    assert not table.observe(group, 400)[1].lost_tail, "it has as much"


def test_a_copy_that_has_no_more_takes_nothing_from_the_process_that_is_heard() -> None:
    machine, table = group_of_three(), make_table()
    for broker_id in (1, 2, 3):
        table.heartbeat(beat(broker_id, broker_id, incarnation=broker_id, epoch=2, max_offset=50), 0)
    for epoch, offset in ((2, 50), (1, 90)):
        table.heartbeat(beat(2, 9, incarnation=77, epoch=epoch, max_offset=offset, confirm_offset=offset), 100)
        assert not table.observe(group_of(machine), 100)[1].lost_tail


def test_who_keeps_asking_for_an_id_that_is_not_free_is_told() -> None:
    machine, table = group_of_three(), make_table()
    table.heartbeat(beat(2, 2, incarnation=2, epoch=1, max_offset=50), 0)
    group = group_of(machine)
    known = table.other_process(group, 2, 77, 0)
    assert known is not None
    table.refused(known, "10.0.0.9:10911", 0)
    assert table.claimed_by(group, 2, 0) is None, "a broker that restarts asks a few times, too"
    table.refused(known, "10.0.0.9:10911", 1000)
    assert table.claimed_by(group, 2, 1000) == "10.0.0.9:10911"
    assert table.claimed_by(group, 1, 1000) is None
    assert table.claimed_by(group, 2, 6001) is None, "it asks no more"
    table.refused(known, "10.0.0.9:10911", 7000)
    assert table.claimed_by(group, 2, 7000) is None


def test_of_two_that_both_ask_for_an_id_the_one_that_is_not_where_it_was_registered_is_told() -> None:
    machine, table = group_of_three(), make_table()
    group = group_of(machine)
    own, other = group.replicas[2].address, "10.0.0.9:10911"
    for now_ms in range(0, 2000, 250):
        for incarnation, connection, address in ((77, 9, other), (2, 2, own)):
            table.heartbeat(beat(2, connection, incarnation=incarnation), now_ms)
            twin = table.other_process(group, 2, incarnation, now_ms)
            if twin is not None:
                table.refused(twin, address, now_ms)
    assert table.is_contested(group, 2, 2000)
    assert table.claimed_by(group, 2, 2000) == other


def test_of_many_that_ask_for_an_id_those_that_asked_last_are_remembered() -> None:
    machine, table = group_of_three(), make_table()
    table.heartbeat(beat(2, 2, incarnation=2), 0)
    group = group_of(machine)
    known = table.get(group, 2)
    assert known is not None
    for now_ms in range(0, 4000, 10):
        table.refused(known, f"10.0.0.{now_ms // 10 % 250}:10911", now_ms)
    assert sum(map(len, table._claims.values())) <= 8
    assert table.claimed_by(group, 2, 4000) is None, "none of them asked for long"


def test_an_id_changes_hands_when_the_process_that_had_it_is_gone() -> None:
    machine, table = group_of_three(), make_table()
    calm = {"interval_ms": 250, "timeout_ms": 1500}
    for now_ms in range(0, 5000, 250):
        table.heartbeat(beat(2, 2, incarnation=2, **calm), now_ms)
        assert not table.heartbeat(beat(2, 9, incarnation=77, **calm), now_ms)
    group = group_of(machine)
    for now_ms in range(5000, 5750, 250):
        assert not table.heartbeat(beat(2, 9, incarnation=77, **calm), now_ms)
    assert table.other_process(group, 2, 77, 7000) is None, "it is silent"
    assert table.heartbeat(beat(2, 9, incarnation=77, **calm), 7000)
    assert not table.heartbeat(beat(2, 2, incarnation=2, **calm), 7100), "the first one thaws: now it is the second one"
    table.connection_closed(9, 7200)
    assert not table.heartbeat(beat(2, 2, incarnation=2, **calm), 7300)
    assert table.heartbeat(beat(2, 2, incarnation=2, **calm), 9300), "not its last words: it goes on speaking"


def test_the_master_keeps_leading_while_another_process_claims_its_id() -> None:
    machine, table = group_of_three(), make_table()
    for broker_id in (1, 2, 3):
        table.heartbeat(beat(broker_id, broker_id, incarnation=broker_id, epoch=1, max_offset=50), 0)
    run(machine, elect(*table.observe(group_of(machine), 0), trigger=Trigger.CONTROLLER))
    table.heartbeat(beat(1, 9, incarnation=77, epoch=9, max_offset=999), 100)
    assert due(machine, table, 100) == []
    observed = observe_for_request(group_of(machine), table, 100)
    assert run(machine, elect(*observed)).code == codes.CONTROLLER_MASTER_STILL_EXIST


def test_who_was_heard_alone_for_a_while_can_be_elected_whatever_comes_later() -> None:
    machine, table = group_of_three(), make_table()
    for now_ms in (0, 1500, 2100):
        table.heartbeat(beat(2, 2, incarnation=2, epoch=1, max_offset=50), now_ms)
    table.heartbeat(beat(2, 9, incarnation=77, epoch=1, max_offset=90), 2200)
    table.heartbeat(beat(2, 9, incarnation=77, epoch=1, max_offset=90), 2400)
    [found] = table.observe(group_of(machine), 2400)
    assert (found.incarnation, found.is_contested) == (2, False)


def test_while_a_table_is_calm_nobody_dies_before_it_is_looked_at_again() -> None:
    rng, calm = random.Random(7), 0
    for _ in range(200):
        machine, table = make_live_group()
        group, now_ms, ahead_ms = group_of(machine), 10_000, 300
        for _ in range(rng.randrange(40)):  # what each of them says, more or less regularly
            now_ms += rng.randrange(20, 250)
            speaker = rng.randrange(1, 4)
            table.heartbeat(beat(speaker, speaker, timeout_ms=1500, interval_ms=250), now_ms)
        now_ms += rng.randrange(1500)
        if table.is_calm(now_ms, ahead_ms):
            calm += 1
            assert not any(table.is_dead(group, each, now_ms + ahead_ms) for each in (1, 2, 3))
    assert 20 < calm < 180


def test_a_table_is_not_calm_while_somebody_is_gone_or_was_never_heard() -> None:
    _, table = make_live_group()
    assert table.is_calm(10_000, 300)
    table.connection_closed(2, 10_000)
    assert not table.is_calm(10_000, 300)
    _, table = make_live_group()
    table.lead(9_000)
    assert not table.is_calm(10_000, 300)


def test_several_that_wait_for_an_id_contest_it_when_one_of_them_has_it() -> None:
    """A broker that starts again and a copy of its directory are refused while its last life was not found dead. Whoever speaks
    first after that has the id, and the other one, whose connection may be older, claims it as before."""
    for last in (2, 77):
        machine, table = make_live_group()
        calm = {"interval_ms": 250, "timeout_ms": 1000, "epoch": 1}
        table.heartbeat(beat(2, 2, incarnation=1, **calm), 10_000)
        waiting = ((77, 9), (2, 8)) if last == 2 else ((2, 8), (77, 9))
        for now_ms in range(10_100, 11_100, 250):
            for incarnation, connection in waiting:
                assert not table.heartbeat(beat(2, connection, incarnation=incarnation, **calm), now_ms)
        group = group_of(machine)
        assert table.heartbeat(beat(2, 9, incarnation=77, **calm), 11_200), "the last life is silent too long"
        assert _contested(table, group, 11_200) == (77, True)
        assert [_other(table, group, each, 11_200) for each in (77, 2)] == [2, 77], "neither is registered"
        for now_ms in range(11_250, 14_000, 250):
            assert not table.heartbeat(beat(2, 8, incarnation=2, **calm), now_ms)
            table.heartbeat(beat(2, 9, incarnation=77, **calm), now_ms)
            assert _contested(table, group, now_ms) == (77, True)
        table.connection_closed(9, 14_000)
        assert not table.heartbeat(beat(2, 8, incarnation=2, **calm), 14_100)
        assert table.heartbeat(beat(2, 8, incarnation=2, **calm), 16_000)
        assert _contested(table, group, 16_000) == (2, False)
        assert _other(table, group, 2, 16_000) is None


def test_last_words_on_an_older_connection_contest_nothing() -> None:
    machine, table = make_live_group()
    for connection, incarnation, now_ms in ((2, 1, 10_000), (8, 2, 12_100), (2, 1, 12_100), (2, 1, 12_200)):
        table.heartbeat(beat(2, connection, incarnation=incarnation, timeout_ms=1000), now_ms)
    assert _contested(table, group_of(machine), 12_200) == (2, False)
    table.heartbeat(beat(2, 2, incarnation=1, timeout_ms=1000), 12_350)
    assert _contested(table, group_of(machine), 12_350) == (2, True), "it goes on speaking"


def test_what_is_said_on_an_older_connection_is_counted_all_the_same() -> None:
    """The process that had the id was not heard for a while, and goes on acknowledging as the member: the copy that has the id
    now has not what that has."""
    machine, table = make_live_group()
    table.heartbeat(beat(2, 2, incarnation=1, epoch=1, max_offset=50, confirm_offset=50, timeout_ms=1000), 10_000)
    assert table.heartbeat(beat(2, 8, incarnation=2, epoch=1, max_offset=50, timeout_ms=1000), 12_100)
    table.heartbeat(beat(2, 2, incarnation=1, epoch=1, max_offset=90, confirm_offset=90, timeout_ms=1000), 12_200)
    assert [each.lost_tail for each in table.observe(group_of(machine), 12_200) if each.broker_id == 2] == [True]


def test_who_speaks_on_an_older_connection_is_heard_when_the_newer_one_is_silent() -> None:
    """The machine of a copy lost its power: its connection does not close, and nobody speaks on it any more."""
    machine, table = make_live_group()
    for now_ms in range(10_000, 16_000, 250):
        table.heartbeat(beat(2, 2, incarnation=1, timeout_ms=1000), now_ms)
        if now_ms == 12_000:
            table.connection_closed(2, now_ms)
            table.heartbeat(beat(2, 9, incarnation=77, timeout_ms=1000), now_ms)
    [found] = [each for each in table.observe(group_of(machine), 16_000) if each.broker_id == 2]
    assert (found.incarnation, found.is_contested) == (1, False)


def test_an_id_remembers_a_bounded_number_of_claims() -> None:
    machine, table = make_live_group()
    table.heartbeat(beat(2, 2, incarnation=1, timeout_ms=60_000), 10_000)
    for incarnation in range(2, 1000):
        table.heartbeat(beat(2, 1000 + incarnation, incarnation=incarnation), 10_000 + incarnation)
    [twins] = table._twins.values()
    assert sorted(twins) == list(range(992, 1000))
    for incarnation in range(992, 1000):
        assert _contested(table, group_of(machine), 11_000) == (1, True)
        table.connection_closed(1000 + incarnation, 11_000)
    assert _contested(table, group_of(machine), 11_000) == (1, False)


def _other(table: HeartbeatTable, group: Group, incarnation: int, now_ms: int) -> int | None:
    """Which process keeps this one from being broker 2."""
    found = table.other_process(group, 2, incarnation, now_ms)
    return None if found is None else found.incarnation


def _contested(table: HeartbeatTable, group: Group, now_ms: int) -> tuple[int, bool]:
    """Which process has the id of broker 2, and whether another one claims it."""
    [found] = [each for each in table.observe(group, now_ms) if each.broker_id == 2]
    return found.incarnation, found.is_contested
