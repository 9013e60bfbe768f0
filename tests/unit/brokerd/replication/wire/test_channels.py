"""Who may come, who was refused, and how fast the log leaves; the list of RocketMQ peers; the file with the secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.replication.rocketmq_peers import RocketmqPeers, host_of
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire.channels import Budget, Channels
from remoting.access.secret_file import load_secrets
from remoting.errors import ProtocolError, SettingsError
from tests.unit.brokerd.replication.group import credentials


def test_a_budget_lets_a_tenth_of_a_second_go_at_once_and_then_the_rate() -> None:
    budget = Budget(1_000_000, 0)
    assert budget.left(0) == 100_000
    budget.spend(100_000)
    assert budget.left(0) == 0
    sent = 0
    for now_ms in range(1, 1001):
        left = budget.left(now_ms)
        assert left is not None
        budget.spend(left)
        sent += left
    assert sent == 1_000_000


def test_a_budget_does_not_grow_while_nothing_is_sent() -> None:
    budget = Budget(1_000_000, 0)
    assert budget.left(3_600_000) == 100_000
    assert budget.left(0) == 100_000, "a clock that goes back takes nothing"


def test_small_rates_are_kept_in_small_steps() -> None:
    budget = Budget(100, 0)
    budget.spend(10)
    sent = 0
    for now_ms in range(0, 10_000):
        left = budget.left(now_ms) or 0
        budget.spend(left)
        sent += left
    assert 990 <= sent <= 1000


def test_no_limit() -> None:
    budget = Budget(0, 0)
    budget.spend(1 << 60)
    assert budget.left(0) is None


def test_refusals_are_logged_once_per_host_and_counted() -> None:
    channels = Channels(ReplicationSettings(), credentials())
    sentences = []
    for connection in range(5):
        channels.accept(connection, "10.0.0.9", 0)
        try:
            channels.receive(connection, b"\xff" * 20)
        except ProtocolError as error:
            sentences.append(channels.refuse(connection, error))
        channels.forget(connection)
    assert [bool(sentence) for sentence in sentences] == [True, False, False, False, False]
    assert "10.0.0.9" in sentences[0]
    assert channels.refused == {"10.0.0.9": 5}
    assert channels._hosts == channels._masters == channels._budgets == {}


def test_refusals_of_many_hosts_are_bounded() -> None:
    channels = Channels(ReplicationSettings(), credentials())
    for connection in range(1000):
        channels.accept(connection, f"10.0.{connection // 250}.{connection % 250}", 0)
        channels.refuse(connection, ProtocolError("no"))
    assert len(channels.refused) == 257
    assert sum(channels.refused.values()) == 1000
    assert channels.refused["others"] == 744


@pytest.mark.parametrize(
    ("text", "host", "allowed"),
    [
        ("", "127.0.0.1", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("127.0.0.1", "127.0.0.2", False),
        ("127.0.0.1", "::ffff:127.0.0.1", True),
        (" 10.0.0.0/8 , ::1", "10.200.3.4", True),
        ("10.0.0.0/8,::1", "::1", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("broker-a.example", "Broker-A.example", True),
        ("broker-a.example", "broker-b.example", False),
        ("broker-a.example", "", False),
        ("10.0.0.0/8", "not an address", False),
    ],
)
def test_plain_peers(text: str, host: str, allowed: bool) -> None:
    assert RocketmqPeers(text).allows(host) is allowed


@pytest.mark.parametrize("text", ["10.0.0.1/8", "10.0.0", "a b", "*", "256.1.1.1", "-x"])
def test_what_is_no_list_of_peers_is_refused_at_start(text: str) -> None:
    with pytest.raises(SettingsError, match=r"replication\.plain_peers"):
        ReplicationSettings(plain_peers=text)


def test_hosts_of_addresses() -> None:
    assert host_of("10.0.0.1:10912") == "10.0.0.1"
    assert host_of("[::1]:10912") == "::1"
    assert host_of("") == ""


def test_a_classic_master_must_be_listed() -> None:
    with pytest.raises(SettingsError, match=r"replication\.plain_peers"):
        ReplicationSettings(classic_master="10.0.0.1:10912")
    ReplicationSettings(classic_master="10.0.0.1:10912", plain_peers="10.0.0.1")


def secret_file(directory: Path, content: bytes, mode: int = 0o600) -> Path:
    path = directory / "secret"
    path.write_bytes(content)
    path.chmod(mode)
    return path


def test_a_secret_is_read_without_blanks(tmp_path: Path) -> None:
    assert load_secrets(secret_file(tmp_path, b"0123456789abcdef\n")) == (b"0123456789abcdef",)


def test_while_it_is_changed_there_are_two(tmp_path: Path) -> None:
    content = b"0123456789abcdef \r\n\nfedcba9876543210"
    assert load_secrets(secret_file(tmp_path, content)) == (b"0123456789abcdef", b"fedcba9876543210")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o601, 0o777])
def test_a_secret_that_others_may_read_is_none(tmp_path: Path, mode: int) -> None:
    with pytest.raises(SettingsError, match="chmod 600"):
        load_secrets(secret_file(tmp_path, b"0123456789abcdef", mode))


@pytest.mark.parametrize("content", [b"", b"short", b"0123456789abcde \n", b"x" * 4097, b"0123456789abcdef\nx"])
def test_a_secret_has_a_sensible_length(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(SettingsError, match="openssl rand"):
        load_secrets(secret_file(tmp_path, content))


def test_a_secret_is_a_file_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot read"):
        load_secrets(tmp_path / "none")
    with pytest.raises(SettingsError):
        load_secrets(tmp_path)
