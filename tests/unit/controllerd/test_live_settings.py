"""Settings that change while the controller runs: what they survive, and what a damaged file says."""

from __future__ import annotations

import logging

import pytest

from controllerd.live_settings import LiveSettings
from controllerd.settings import parse
from remoting.errors import CorruptedFile, RequestError
from remoting.live_settings import SETTINGS_FILE
from tests.support.disks import MemoryDisk


def live(disk: MemoryDisk, *assignments: str) -> LiveSettings:
    return LiveSettings(parse(["--data", "d", *(word for each in assignments for word in ("--set", each))]), disk)


def test_a_change_counts_at_once_and_after_a_restart() -> None:
    disk = MemoryDisk()
    settings = live(disk)
    assert settings.election.value.unclean is False
    settings.update("election", b"election.unclean=true\nnotifyBrokerRoleChanged=false", "somebody")
    settings.update("nameserver", b"nameserver.order_topics=false", "somebody")
    for each in (settings, live(disk)):
        assert each.election.value.unclean is True
        assert each.election.value.notify is False
        assert each.nameserver.value.order_topics is False
        assert "election.unclean=true\n" in each.as_properties()
        assert "enableElectUncleanMaster=true\n" in each.as_properties()
        assert each.start.raft.tick_ms == 50


def test_the_command_line_wins_at_the_next_start(caplog: pytest.LogCaptureFixture) -> None:
    disk = MemoryDisk()
    settings = live(disk, "election.unclean=false")
    with caplog.at_level(logging.WARNING):
        settings.update("election", b"election.unclean=true", "10.0.0.9:4000")
    assert settings.election.value.unclean is True
    assert "10.0.0.9:4000 sets election.unclean to true; the command line sets it" in caplog.text
    assert live(disk, "election.unclean=false").election.value.unclean is False
    assert live(disk).election.value.unclean is True


def test_a_refused_change_leaves_nothing_behind() -> None:
    disk = MemoryDisk()
    settings = live(disk)
    for body in (b"election.unclean=true\nraft.tick_ms=5", b"election.unclean=true\nelection.notify=2"):
        with pytest.raises(RequestError):
            settings.update("election", body, "somebody")
    assert settings.election.value.unclean is False
    assert disk.read_bytes(SETTINGS_FILE) is None


def test_unclean_election_is_never_on_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        live(MemoryDisk(), "election.unclean=true")
    assert "unclean election is on" in caplog.text


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"election.unclean":true}', b'{"election.nothing":"1"}', b'{"election.unclean":"2"}']
)
def test_a_damaged_file_is_said_so(content: bytes) -> None:
    disk = MemoryDisk()
    disk.replace_bytes(SETTINGS_FILE, content)
    with pytest.raises(CorruptedFile, match="remove it"):
        live(disk)
