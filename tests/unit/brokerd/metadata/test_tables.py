"""Decisions and tables: names, queue rules, system topics, and that replayed records give the same tables."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from brokerd.metadata import records
from brokerd.metadata.configs import GroupConfig, TopicConfig
from brokerd.metadata.decide import MESSAGE_TYPES, Decision, Rules
from brokerd.metadata.names import SystemNames
from brokerd.metadata.tables import MetadataTables
from remoting import codes
from remoting.errors import InvalidParameter, RequestError
from tests.support.examples import examples

NAMES = SystemNames("DefaultCluster", "broker-a", development=False, delay_levels=18)


def rules(tables: MetadataTables) -> Rules:
    return Rules(tables, NAMES, lambda: 1)


def put_topic(tables: MetadataTables, config: TopicConfig, unread: int = 0) -> bool:
    record = Rules(tables, NAMES, lambda: 1, lambda _: unread).put_topic(config)
    if record is not None:
        tables.apply(*record, 1)
    return record is not None


@pytest.mark.parametrize("name", ["", "a b", "a+b", "ä", "t" * 128, "a/b", "%RETRY%" + "x" * 249])
def test_bad_topic_names_are_refused(name: str) -> None:
    with pytest.raises(RequestError, match="name") as caught:
        put_topic(MetadataTables(), TopicConfig(name))
    assert caught.value.code == codes.INVALID_PARAMETER


@pytest.mark.parametrize("name", ["a", "t" * 127, "%RETRY%" + "x" * 248, "A|b%c_d-9"])
def test_good_topic_names_are_taken(name: str) -> None:
    assert put_topic(MetadataTables(), TopicConfig(name))


@pytest.mark.parametrize(
    "name",
    ["TBW102", "rmq_sys_anything", "SELF_TEST_TOPIC", "DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"],
)
def test_system_topics_are_protected(name: str) -> None:
    with pytest.raises(RequestError, match="system topic"):
        put_topic(MetadataTables(), TopicConfig(name))
    with pytest.raises(RequestError, match="system topic"):
        rules(MetadataTables()).delete_topic(name)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (TopicConfig("t", 0, 0), "from 1 to"),
        (TopicConfig("t", 5000, 5000), "from 1 to"),
        (TopicConfig("t", 4, 8), "could never be read"),
        (TopicConfig("t", perm=8), "perm"),
        (TopicConfig("t", attributes={"message.type": "QUICK"}), "message.type must be"),
        (TopicConfig("t", attributes={"queue.type": "BatchCQ"}), "queue.type must be"),
        (TopicConfig("t", attributes={"reserve.time": "soon"}), "reserve.time must be"),
        (TopicConfig("t", attributes={"color": "red"}), "unsupported"),
    ],
)
def test_bad_configurations_are_refused(config: TopicConfig, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        put_topic(MetadataTables(), config)


@pytest.mark.parametrize(
    ("key", "value", "right"),
    [
        ("message.type", "QUICK", "FIFO"),
        ("local.reserve.time", "soon", "240"),
        ("tier.reserve.time", "0", "-1"),
        ("tier.enable", "yes", "true"),
        ("reserve.time", "never", "-1"),
        ("color", "red", None),
        ("queue.type", "BatchCQ", None),
    ],
)
def test_a_topic_that_was_taken_over_with_a_wrong_attribute_can_be_changed(
    key: str, value: str, right: str | None
) -> None:
    taken_over = TopicConfig("t", 4, 4, attributes={key: value})
    tables = MetadataTables()
    tables.topics["t"] = taken_over
    assert put_topic(tables, replace(taken_over, read_queue_nums=8, write_queue_nums=8))
    assert put_topic(tables, replace(taken_over, attributes={key: value, "tier.archive": "true"}))
    for worse in ("wrong", "as well"):
        with pytest.raises(RequestError, match="attribute"):
            put_topic(tables, replace(taken_over, attributes={key: worse}))
    if right is not None:
        assert put_topic(tables, replace(taken_over, attributes={key: right}))
        with pytest.raises(RequestError, match="attribute"):
            put_topic(tables, taken_over)


def test_a_group_that_was_taken_over_with_wrong_attributes_can_be_changed() -> None:
    attributes = {"invisible.min.ms": "9", "invisible.max.ms": "5", "order.scope": "planet"}
    taken_over = GroupConfig("g", attributes=attributes)
    tables = MetadataTables()
    tables.groups["g"] = taken_over
    assert rules(tables).put_group(replace(taken_over, retry_max_times=3)) is not None
    for wrong in ({**attributes, "invisible.max.ms": "6"}, {**attributes, "order.scope": "moon"}):
        with pytest.raises(InvalidParameter):
            rules(tables).put_group(replace(taken_over, attributes=wrong))


def test_a_topic_shrinks_only_below_what_is_unread() -> None:
    tables = MetadataTables()
    put_topic(tables, TopicConfig("t", 8, 8))
    with pytest.raises(RequestError, match="queues 4 to 5 of t hold messages"):
        put_topic(tables, TopicConfig("t", 4, 4), unread=6)
    assert put_topic(tables, TopicConfig("t", 8, 4), unread=6)
    assert put_topic(tables, TopicConfig("t", 6, 4), unread=6)
    assert put_topic(tables, TopicConfig("t", 4, 4), unread=2)


def test_an_equal_configuration_changes_nothing() -> None:
    tables = MetadataTables()
    config = TopicConfig("t", attributes={"message.type": "FIFO"})
    assert put_topic(tables, config)
    assert not put_topic(tables, config)
    assert tables.topic_changes == 1


def test_deleting_a_topic_takes_its_retry_topics_and_offsets() -> None:
    tables = MetadataTables()
    for name in ("t", "other", "%RETRY%g+t", "%RETRY%g_t", "%RETRY%g+other", "%RETRY%g"):
        tables.apply(*records.record(records.TOPIC_PUT, 1, topic=records.encode_topic(TopicConfig(name))), 1)
    tables.apply(*records.record(records.GROUP_PUT, 1, group=records.encode_group(GroupConfig("g"))), 1)
    tables.apply(*records.offsets({("g", "t", 0): 5, ("g", "other", 0): 6}, 1), 1)
    record = rules(tables).delete_topic("t")
    assert record is not None
    change = tables.apply(*record, 77)
    assert change.position == 77
    assert change.topics_deleted == ("t", "%RETRY%g+t", "%RETRY%g_t")
    assert set(tables.topics) == {"other", "%RETRY%g+other", "%RETRY%g"}
    assert tables.consumer_offset("g", "t", 0) is None
    assert tables.consumer_offset("g", "other", 0) == 6
    assert rules(tables).delete_topic("t") is None


def test_groups_are_checked_too() -> None:
    tables = MetadataTables()
    for bad in (GroupConfig(""), GroupConfig("g" * 121), GroupConfig("a b"), GroupConfig("g", retry_max_times=-1)):
        with pytest.raises(RequestError):
            rules(tables).put_group(bad)
    with pytest.raises(RequestError, match="system group"):
        rules(tables).put_group(GroupConfig("CID_RMQ_SYS_X"))
    with pytest.raises(RequestError, match="system group"):
        rules(tables).delete_group("TOOLS_CONSUMER", clean_offsets=True)


def test_offsets_of_a_deleted_group_go_only_when_asked() -> None:
    for clean in (False, True):
        tables = MetadataTables()
        tables.apply(*records.record(records.GROUP_PUT, 1, group=records.encode_group(GroupConfig("g"))), 1)
        tables.apply(*records.offsets({("g", "t", 0): 5}, 1), 1)
        record = rules(tables).delete_group("g", clean_offsets=clean)
        assert record is not None
        tables.apply(*record, 1)
        assert tables.consumer_offset("g", "t", 0) == (None if clean else 5)


class TablesMachine(RuleBasedStateMachine):
    """Any accepted changes: tables rebuilt from the records, or from a snapshot in the middle, are equal."""

    topics = st.sampled_from(["a", "b", "%RETRY%g+a"])
    groups = st.sampled_from(["g", "h"])

    @initialize()
    def start(self) -> None:
        self.tables = MetadataTables()
        self.rules = rules(self.tables)
        self.log: list[tuple[str, Any]] = []

    def record(self, decision: Decision) -> None:
        if decision is not None:
            self.log.append(decision)
            self.tables.apply(*decision, 1)

    @rule(name=topics, queues=st.integers(1, 4), kind=st.sampled_from(MESSAGE_TYPES))
    def put(self, name: str, queues: int, kind: str) -> None:
        if "+" in name:
            self.record(self.rules.ensure_topic(name, queues))
        else:
            config = TopicConfig(name, queues, queues, attributes={"message.type": kind})
            self.record(self.rules.put_topic(config))

    @rule(name=topics)
    def delete(self, name: str) -> None:
        self.record(self.rules.delete_topic(name))

    @rule(name=groups, fifo=st.booleans())
    def put_group(self, name: str, fifo: bool) -> None:
        self.record(self.rules.put_group(GroupConfig(name, fifo)))

    @rule(name=groups, clean=st.booleans())
    def delete_group(self, name: str, clean: bool) -> None:
        self.record(self.rules.delete_group(name, clean_offsets=clean))
        self.record(self.rules.delete_retry_topics(name))

    @rule(group=groups, topic=topics, queue_id=st.integers(0, 2), offset=st.integers(0, 100))
    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.record(records.offsets({(group, topic, queue_id): offset}, 1))

    @rule(group=groups, topic=topics, queue_id=st.integers(0, 2), offset=st.integers(0, 100))
    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        self.record(records.record(records.OFFSETS_RESET, 1, group=group, topic=topic, o=[[queue_id, offset]]))
        assert self.tables.consumer_offset(group, topic, queue_id) == offset
        assert self.tables.rules.pending_reset(group, topic, queue_id) == offset

    @rule(group=groups, topic=topics, queue_id=st.integers(0, 2))
    def take_reset(self, group: str, topic: str, queue_id: int) -> None:
        self.record(records.record(records.RESETS_TAKEN, 1, o=[[group, topic, queue_id]]))
        assert self.tables.rules.pending_reset(group, topic, queue_id) is None

    @rule(group=groups, topic=topics, share=st.integers(-1, 3))
    def set_mode(self, group: str, topic: str, share: int) -> None:
        self.record(records.record(records.REQUEST_MODE, 1, group=group, topic=topic, mode="POP", share=share))

    @rule(group=groups, topic=topics, forbidden=st.booleans())
    def forbid(self, group: str, topic: str, forbidden: bool) -> None:
        changes = ((group, topic) in self.tables.rules.forbidden) != forbidden
        if changes and (topic not in self.tables.topics or group not in self.tables.groups):
            with pytest.raises(RequestError, match="does not exist"):
                self.rules.forbid(group, topic, forbidden)
            return
        self.record(self.rules.forbid(group, topic, forbidden))
        assert ((group, topic) in self.tables.rules.forbidden) == forbidden

    @invariant()
    def replay_is_equal(self) -> None:
        if not hasattr(self, "tables"):
            return
        for half in (0, len(self.log) // 2):
            middle = MetadataTables()
            for record in self.log[:half]:
                middle.apply(*record, 1)
            rebuilt = MetadataTables()
            for row in middle.snapshot_rows():
                rebuilt.load_row(row)
            for record in self.log[half:]:
                rebuilt.apply(*record, 1)
            assert rebuilt.topics == self.tables.topics
            assert rebuilt.groups == self.tables.groups
            assert rebuilt.offsets == self.tables.offsets
            assert rebuilt.topic_changes == self.tables.topic_changes
            assert vars(rebuilt.rules) == vars(self.tables.rules)


TestTables = TablesMachine.TestCase
TestTables.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)


def test_a_topic_after_a_template_has_the_fewer_queues_and_does_not_pass_the_permission_on() -> None:
    template = TopicConfig("TBW102", 8, 8, 7)

    def like(name: str, template: TopicConfig | None, queues: int, is_unit: bool = False) -> TopicConfig | None:
        tables = MetadataTables()
        record = rules(tables).topic_like(name, template, queues, is_unit=is_unit)
        if record is None:
            return None
        tables.apply(*record, 1)
        return tables.topics[name]

    assert like("t", template, 4) == TopicConfig("t", 4, 4, 6)
    assert like("t", template, 99, is_unit=True) == TopicConfig("t", 8, 8, 6, 1)
    assert like("t", None, 4) is None
    assert like("t", TopicConfig("u", 8, 8, 6), 4) is None
    for name, queues in (("rmq_sys_t", 4), ("a b", 4), ("t", 0)):
        with pytest.raises(RequestError) as caught:
            like(name, template, queues)
        assert caught.value.code == codes.INVALID_PARAMETER
