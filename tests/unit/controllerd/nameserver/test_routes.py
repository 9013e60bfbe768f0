"""The route table: who may register, who is forgotten when, whose word counts for topics, and who is told of a smaller id."""

from __future__ import annotations

import pytest

from controllerd.nameserver.records import DataVersion, MinIdChange, QueueData, Registration
from controllerd.nameserver.routes import RouteTable
from remoting.errors import RequestError

EIGHT = QueueData(8, 8, 6)
TOPICS = {"T": EIGHT, "U": EIGHT}


def broker(broker_id: int = 0, address: str = "h:1", epoch: int = 1, **more: object) -> Registration:
    fields: dict[str, object] = {"topics": TOPICS, "data_version": DataVersion(1, epoch, 1)}
    return Registration("c", "broker-a", broker_id, address, **{**fields, **more})  # type: ignore[arg-type]


def addresses(table: RouteTable) -> dict[int, str]:
    return {broker_id: member.address for broker_id, member in table.members("broker-a").items()}


def topics(table: RouteTable) -> list[str]:
    return [name for name, _ in table.topics()]


def test_only_the_master_says_which_topics_there_are() -> None:
    table = RouteTable()
    assert table.register(broker(), "x", 0) == broker(topics={})
    assert table.register(broker(2, "h:2", topics={"Other": EIGHT, "V": EIGHT}), "y", 0) == broker(topics={})
    assert topics(table) == ["T", "U"]
    assert addresses(table) == {0: "h:1", 2: "h:2"}


def test_a_stale_master_cannot_take_its_place_back() -> None:
    committed = {"broker-a": 0}
    table = RouteTable(lambda name: committed[name])
    table.register(broker(0, "old:1", epoch=3), "x", 0)
    table.register(broker(0, "new:1", epoch=4), "y", 0)
    for epoch in (3, 4):
        with pytest.raises(RequestError, match="epoch"):
            table.register(broker(0, "old:1", epoch=epoch), "x", 0)
    table.unregister("broker-a", 0, "new:1")
    with pytest.raises(RequestError, match="epoch 4 is known"):
        table.register(broker(0, "old:1", epoch=3), "x", 0)
    committed["broker-a"] = 6
    with pytest.raises(RequestError, match="epoch 6 is known"):
        table.register(broker(0, "new:1", epoch=5), "y", 0)


def test_a_restarted_name_server_refuses_a_stale_master_by_what_the_controllers_committed() -> None:
    table = RouteTable(lambda name: 7)
    with pytest.raises(RequestError, match="epoch 7 is known"):
        table.register(broker(0, "a:1", epoch=6), "a", 0)
    assert table.groups() == [], "who was refused left nothing behind"
    table.register(broker(0, "b:1", epoch=7), "b", 0)
    for _ in range(2):
        with pytest.raises(RequestError, match="alive"):
            table.register(broker(0, "a:1", epoch=7), "a", 0)
        table.register(broker(0, "b:1", epoch=7), "b", 0)
    assert addresses(table) == {0: "b:1"}


def test_a_former_master_leaves_the_routes_when_the_controllers_decide() -> None:
    table = RouteTable()
    table.register(broker(0, "a:1"), "a", 0)
    table.register(broker(2, "b:1"), "b", 0)
    table.fence("broker-a", "b:1")
    assert addresses(table) == {2: "b:1"}
    assert table.queues("T"), "consumers may read on from the replica"
    table.register(broker(0, "b:1", epoch=2), "b", 0)
    table.fence("broker-a", "b:1")
    assert addresses(table) == {0: "b:1"}
    table.fence("broker-a", None)
    assert addresses(table) == {}
    table.fence("nobody", None)


def test_a_master_that_became_a_replica_keeps_one_record() -> None:
    table = RouteTable()
    table.register(broker(0, "a:1", epoch=1), "x", 0)
    table.register(broker(0, "b:1", epoch=2), "y", 0)
    table.register(broker(1, "a:1", epoch=2), "x", 0)
    assert addresses(table) == {0: "b:1", 1: "a:1"}
    table.register(broker(0, "a:1", epoch=3), "x", 0)
    assert addresses(table) == {0: "a:1"}


def test_a_closed_connection_forgets_at_once_and_silence_after_its_time() -> None:
    table = RouteTable()
    table.register(broker(0, "a:1", timeout_ms=2000), "x", 0)
    table.register(broker(1, "b:1", timeout_ms=2000), "y", 1000)
    table.heard_from("broker-a", "a:1", 1500)
    assert table.expire(3200) == [broker(1, "b:1", timeout_ms=2000, topics={})]
    assert [gone.address for gone in table.connection_closed("x")] == ["a:1"]
    assert table.queues("T") == {}
    assert topics(table) == []


def test_a_pause_of_the_name_server_is_not_the_brokers_silence() -> None:
    table = RouteTable()
    table.register(broker(0, "a:1", timeout_ms=10_000), "a", 0)
    assert table.expire(1_000) == []
    assert table.expire(60_000) == []
    for now_ms in range(61_000, 69_001, 1_000):
        assert table.expire(now_ms) == []
    assert [gone.address for gone in table.expire(70_000)] == ["a:1"]


def test_a_complete_registration_removes_what_it_does_not_name() -> None:
    table = RouteTable()
    table.register(broker(), "x", 0)
    table.register(broker(epoch=2, topics={"V": EIGHT}), "x", 0)
    assert topics(table) == ["T", "U", "V"]
    table.register(broker(epoch=3, topics={"V": EIGHT}, is_complete=True), "x", 0)
    assert topics(table) == ["V"]


def test_a_single_topic_of_an_unknown_broker_is_no_topic_table() -> None:
    table = RouteTable()
    with pytest.raises(RequestError, match="register with the whole table first"):
        table.register(broker(topics={"T": EIGHT}), "x", 0)
    assert table.groups() == []
    table.register(broker(topics={"T": EIGHT}, is_complete=True), "x", 0)
    assert topics(table) == ["T"]


def test_what_an_administrator_changed_stays_until_the_brokers_table_changes() -> None:
    table = RouteTable()
    table.register(broker(), "x", 0)
    assert table.set_write_permission("broker-a", writable=False) == 2
    table.delete_topic("U")
    table.register(broker(), "x", 0)
    assert table.queues("T")["broker-a"].perm == 4
    assert table.queues("U")["broker-a"].perm == 6, "a topic that the broker still has comes back"
    table.register(broker(epoch=2), "x", 0)
    assert table.queues("T")["broker-a"].perm == 6
    assert table.set_write_permission("broker-a", writable=False) == 2
    assert table.set_write_permission("broker-a", writable=True) == 2
    assert table.queues("T")["broker-a"].perm == 6
    assert table.set_write_permission("nobody", writable=True) == 0


def test_giving_the_write_permission_back_keeps_other_permissions() -> None:
    table = RouteTable()
    table.register(broker(topics={"TBW102": QueueData(8, 8, 7), "T": EIGHT}), "x", 0)
    table.set_write_permission("broker-a", writable=False)
    table.set_write_permission("broker-a", writable=True)
    assert table.queues("TBW102")["broker-a"].perm == 7


def test_others_may_name_queues_of_known_groups_only() -> None:
    table = RouteTable()
    table.register(broker(), "x", 0)
    table.register_topic("V", {"broker-a": EIGHT, "nobody": EIGHT})
    assert table.queues("V") == {"broker-a": EIGHT}
    table.register_topic("W", {"nobody": EIGHT})
    assert "W" not in topics(table)


def test_the_smallest_id_speaks_for_topics_while_there_is_no_master() -> None:
    table = RouteTable()
    table.register(broker(3, "h:3", acting_master=False, topics={"A": EIGHT, "B": EIGHT}), "z", 0)
    assert table.queues("A") == {"broker-a": EIGHT}
    table.register(broker(2, "h:2", acting_master=True, topics={"C": EIGHT, "D": EIGHT}), "y", 0)
    assert table.queues("C")["broker-a"].perm == 4, "who only stands in takes no writes"
    table.register(broker(4, "h:4", acting_master=True, topics={"E": EIGHT, "F": EIGHT}), "w", 0)
    assert table.queues("E") == {}
    table.register(broker(0, "h:1", topics={"C": EIGHT, "D": EIGHT}), "x", 0)
    assert table.queues("C")["broker-a"].perm == 6
    table.register(broker(2, "h:2", epoch=2, acting_master=True, topics={"C": QueueData(1, 1, 6), "D": EIGHT}), "y", 0)
    assert table.queues("C")["broker-a"] == EIGHT, "the master's word counts while it is there"


def test_groups_that_asked_for_it_hear_of_another_smallest_id() -> None:
    table = RouteTable()
    table.register(broker(1, "h:1", acting_master=True, ha_address="h:11"), "a", 0)
    table.register(broker(2, "h:2", acting_master=True), "b", 0)
    table.register(broker(3, "h:3", acting_master=True), "c", 0)
    assert table.take_min_id_changes() == []
    table.connection_closed("a")
    assert table.take_min_id_changes() == [MinIdChange("broker-a", 2, "h:2", ("h:2", "h:3"), offline_address="h:1")]
    table.register(broker(1, "h:1", acting_master=True, ha_address="h:11"), "a", 0)
    assert table.take_min_id_changes() == [MinIdChange("broker-a", 1, "h:1", ("h:2", "h:3"), ha_address="h:11")]
    table.unregister("broker-a", 3, "h:3")
    assert table.take_min_id_changes() == []
    table.expire(1_000_000)
    table.expire(2_000_000)
    assert table.members("broker-a") == {}


def test_other_groups_hear_nothing() -> None:
    table = RouteTable()
    table.register(broker(0, "h:1"), "a", 0)
    table.register(broker(1, "h:2", acting_master=False), "b", 0)
    table.connection_closed("a")
    table.register(broker(0, "h:1"), "a", 0)
    assert table.take_min_id_changes() == []


def test_when_the_master_of_an_acting_group_goes_its_topics_can_only_be_read_until_it_is_back() -> None:
    table = RouteTable()
    table.register(broker(0, "h:0", acting_master=True, topics={"A": EIGHT, "B": EIGHT}), "m", 0)
    table.register(broker(1, "h:1", acting_master=True, topics={"A": EIGHT, "B": EIGHT}), "r", 0)
    assert table.queues("A")["broker-a"].perm == 6
    table.connection_closed("m")
    assert table.queues("A")["broker-a"].perm == 4
    table.register(broker(1, "h:1", acting_master=True, topics={"A": EIGHT, "B": EIGHT}), "r", 0)
    assert table.queues("A")["broker-a"].perm == 4, "who stands in brings no permission to write"
    table.register(broker(0, "h:0", acting_master=True, topics={"A": EIGHT, "B": EIGHT}), "m", 0)
    assert table.queues("A")["broker-a"].perm == 6


def test_of_two_processes_with_one_identity_the_first_one_stays_where_roles_are_fixed() -> None:
    """Each start of a copy has a newer epoch, which proves nothing."""
    committed = {"broker-a": 0}
    table = RouteTable(lambda name: committed[name])
    table.register(broker(0, "a:1", epoch=3, incarnation=1), "a", 0)
    copy = broker(0, "b:1", epoch=4, incarnation=2)
    assert table.twin_of(copy, 1000) == broker(0, "a:1", epoch=3, incarnation=1, topics={})
    assert table.twin_of(broker(0, "a:1", epoch=4, incarnation=2), 1000) is None, "its next life, where it was"
    assert table.twin_of(broker(0, "b:1", epoch=4), 1000) is None, "of the original: its epoch decides"
    assert table.twin_of(copy, 50_000) is None, "the first one has not said a word for long"
    committed["broker-a"] = 3
    assert table.twin_of(copy, 1000) is None, "the controllers decide"
    committed["broker-a"] = 0
    table.connection_closed("a")
    assert table.twin_of(copy, 1000) is None
