"""Settings that change while a broker runs: a list of names, kept in a file, in effect at once."""

from __future__ import annotations

from dataclasses import fields

import pytest

from brokerd.composition.live_settings import LiveSettings
from brokerd.composition.settings import parse
from brokerd.replication.settings import ReplicationSettings
from brokerd.store.put_status import PutStatus
from remoting import codes, properties_text
from remoting.errors import CorruptedFile, RequestError
from remoting.live_settings import SETTINGS_FILE
from remoting.settings import groups_of, names_of
from tests.support.disks import MemoryDisk
from tests.unit.brokerd.replication.group import Group


def live(disk: MemoryDisk, *assignments: str) -> LiveSettings:
    return LiveSettings(parse(["--data", "d", *(word for each in assignments for word in ("--set", each))]), disk)


def test_both_names_are_taken_kept_and_in_effect_at_once() -> None:
    disk = MemoryDisk()
    settings = live(disk)
    heard: list[int] = []
    settings.replication.subscribe(lambda changed: heard.append(changed.min_in_sync_replicas))
    settings.update(b"minInSyncReplicas=2\n# a remark\npull.slave_read=true\n", "a person")
    assert heard == [2]
    assert settings.pull.value.slave_read
    again = live(disk)
    assert (again.replication.value.min_in_sync_replicas, again.pull.value.slave_read) == (2, True)
    assert live(disk, "replication.min_in_sync_replicas=3").replication.value.min_in_sync_replicas == 3, (
        "the command line wins"
    )


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", codes.SYSTEM_ERROR),
        (b"\xff", codes.SYSTEM_ERROR),
        (b"minInSyncReplicas", codes.SYSTEM_ERROR),
        (b"minInSyncReplicas=0", codes.SYSTEM_ERROR),
        (b"minInSyncReplicas=two", codes.SYSTEM_ERROR),
        (b"slaveReadEnable=yes", codes.SYSTEM_ERROR),
        (b"minInSyncReplicas=2\nbrokerConfigPath=/etc/passwd", codes.NO_PERMISSION),
        (b"store.segment_size_bytes=4096", codes.NO_PERMISSION),
        (b"replication.roles=fixed", codes.NO_PERMISSION),
        (b"x" * (properties_text.MAX_BODY_BYTES + 1), codes.SYSTEM_ERROR),
    ],
)
def test_what_may_not_be_or_cannot_be_changes_nothing(body: bytes, code: int) -> None:
    disk = MemoryDisk()
    settings = live(disk)
    with pytest.raises(RequestError) as caught:
        settings.update(body, "a person")
    assert caught.value.code == code
    assert settings.replication.value == ReplicationSettings()
    assert disk.read_bytes(SETTINGS_FILE) is None


def test_all_that_may_be_changed_can_be_and_is_shown_by_both_names() -> None:
    settings = live(MemoryDisk())
    shown = settings.as_properties()
    changeable = names_of(groups_of(parse(["--data", "d"])), live=True)
    assert len(changeable) == 22
    for theirs, ours in changeable.items():
        if theirs != "fileReservedTime":
            assert shown[theirs] == shown[ours]
        settings.update(f"{theirs}={shown[theirs]}".encode(), "a person")
    assert "d" not in shown.values(), "no path is told"
    assert properties_text.decode(properties_text.encode(shown)) == shown


def test_hours_there_are_milliseconds_here() -> None:
    disk = MemoryDisk()
    settings = live(disk)
    assert settings.as_properties()["fileReservedTime"] == "72"
    settings.update(b"fileReservedTime=24\ndiskMaxUsedSpaceRatio=70", "a person")
    assert (settings.retention.value.reserved_time_ms, settings.retention.value.force_percent) == (24 * 3_600_000, 70)
    assert live(disk).as_properties()["fileReservedTime"] == "24"
    with pytest.raises(RequestError, match="whole number"):
        settings.update(b"fileReservedTime=a day", "a person")
    settings.update(b"retention.reserved_time_ms=5400000", "a person")
    assert settings.as_properties()["fileReservedTime"] == "1.5"


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"a=1\r\n# no\n! no\n\n b = 2 \n", {"a": "1", "b": "2"}),
        (b"a:1", {"a": "1"}),
        (b"a=x=y:z", {"a": "x=y:z"}),
        (rb"a\=b=c\:d\\e", {"a=b": "c:d\\e"}),
        (rb"a\u0041=\u00e9\t.", {"aA": "\u00e9\t."}),
    ],
)
def test_escapes_of_java_properties(body: bytes, found: dict[str, str]) -> None:
    assert properties_text.decode(body) == found
    assert {key: properties_text.decode(properties_text.encode({"k": text}))["k"] for key, text in found.items()} == {
        key: text.strip() for key, text in found.items()
    }


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"replication.min_in_sync_replicas": 2}', b'{"pull.slave_read": "x"}']
)
def test_a_damaged_file_is_refused_with_what_to_do(content: bytes) -> None:
    disk = MemoryDisk()
    disk.replace_bytes(SETTINGS_FILE, content)
    with pytest.raises(CorruptedFile, match="remove it"):
        live(disk)


def test_a_running_master_takes_over_what_changed() -> None:
    group = Group(2)
    group.elect(1)
    group.append(group[1])
    group.settle(5)
    group.crash(group[2])
    driver = group[1].driver
    group.append(group[1])
    group.flush(group[1])
    assert group.outcomes == [PutStatus.PUT_OK], "the dead replica is still required"
    driver.reconfigure(ReplicationSettings(all_ack_in_sync_state_set=False), group.now_ms)
    assert group.outcomes == [PutStatus.PUT_OK] * 2, "who waits already is let go"
    driver.reconfigure(ReplicationSettings(min_in_sync_replicas=3), group.now_ms)
    assert not driver.accepts_messages
    assert group[1].state().leading.quorum.refused
    driver.reconfigure(ReplicationSettings(), group.now_ms)
    assert driver.accepts_messages


def test_transactions_take_over_what_changed() -> None:
    settings = live(MemoryDisk())
    settings.update(b"transactionTimeOut=1000\ntransactionCheckMax=3\nrejectTransactionMessage=true", "a person")
    found = settings.transactions.value
    assert (found.timeout_ms, found.check_max, found.reject) == (1000, 3, True)


def test_the_delay_levels_are_shown_under_both_names() -> None:
    shown = live(MemoryDisk(), "store.delay_levels=3s 1h").as_properties()
    assert shown["messageDelayLevel"] == shown["store.delay_levels"] == "3s 1h"
    assert shown["delay.batch_messages"] == "128"


def test_every_setting_is_shown_but_paths() -> None:
    groups = groups_of(parse(["--data", "d"]))
    shown = live(MemoryDisk(), "tls.ca_path=/etc/ca.pem").as_properties()
    names = {f"{part}.{each.name}" for part, group in groups.items() for each in fields(group)}
    assert names - shown.keys() == {"tls.certificate_path", "tls.key_path", "tls.ca_path", "tiers.options_path"}
    assert names_of(groups).keys() <= shown.keys()
    assert "/etc/ca.pem" not in shown.values()
