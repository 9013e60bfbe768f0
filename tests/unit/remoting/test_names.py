"""Names of topics: whose they are, told by the name alone."""

from __future__ import annotations

import pytest

from remoting import names

RESERVED = (
    *("TBW102", "SCHEDULE_TOPIC_XXXX", "BenchmarkTest", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRACE_TOPIC"),
    *("RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC", "SELF_TEST_TOPIC", "OFFSET_MOVED_EVENT"),
    "CHECKPOINT_TOPIC",
)


def test_the_originals_reserved_topics_are_all_there_and_no_others() -> None:
    assert set(RESERVED) == names.RESERVED_TOPICS


@pytest.mark.parametrize("name", [*RESERVED, "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_DefaultCluster", "rmq_sys_"])
def test_what_the_system_keeps_for_itself(name: str) -> None:
    assert names.is_system_topic(name)


@pytest.mark.parametrize(
    "name",
    ["orders", "", "RMQ_SYS_mine", "Rmq_sys_x", "tbw102", "schedule_topic_xxxx", "my_rmq_sys_x", "TBW102x", "%RETRY%g"],
)
def test_names_are_compared_exactly(name: str) -> None:
    assert not names.is_system_topic(name)


def test_a_cluster_adds_topics_of_its_own() -> None:
    own = {"DefaultCluster", "broker-a", "DefaultCluster_REPLY_TOPIC"}
    assert names.is_system_topic("broker-a", own)
    assert not names.is_system_topic("BROKER-A", own)
    assert not names.is_system_topic("broker-a")
    assert names.is_system_topic("TBW102", own)


@pytest.mark.parametrize(
    ("name", "retry", "dead_letter"),
    [
        ("%RETRY%g", True, False),
        ("%RETRY%g+orders", True, False),
        ("%DLQ%g", False, True),
        ("%RETRY%%DLQ%g", True, False),
        ("%retry%g", False, False),
        ("%dlq%g", False, False),
        ("x%RETRY%g", False, False),
        ("RETRY%g", False, False),
        ("", False, False),
    ],
)
def test_prefixes_tell_retries_and_dead_letters(name: str, retry: bool, dead_letter: bool) -> None:
    assert (names.is_retry_topic(name), names.is_dead_letter_topic(name)) == (retry, dead_letter)


@pytest.mark.parametrize(
    ("name", "group", "origin"),
    [
        ("%RETRY%g", "g", None),
        ("%RETRY%g+orders", "g", "orders"),
        ("%RETRY%ns%g", "ns%g", None),
        ("%RETRY%g_orders", "g_orders", None),
        ("%RETRY%g+", "g", None),
        ("%RETRY%%RETRY%g", "%RETRY%g", None),
    ],
)
def test_a_retry_topic_says_whose_and_maybe_of_what(name: str, group: str, origin: str | None) -> None:
    assert (names.group_of_retry_topic(name), names.origin_of_retry_topic(name)) == (group, origin)


def test_a_groups_dead_letters_have_one_topic() -> None:
    assert names.dead_letter_topic_of("g") == "%DLQ%g"
    assert names.group_of_dead_letter_topic("%DLQ%g") == "g"


def test_only_a_topic_of_the_kind_is_asked_whose_it_is() -> None:
    assert names.group_of_retry_topic("orders") is None
    for ask in (names.origin_of_retry_topic, names.group_of_dead_letter_topic):
        with pytest.raises(AssertionError):
            ask("orders")
