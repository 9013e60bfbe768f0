"""The command line: what it makes of good words and what it says to bad ones."""

from __future__ import annotations

import pytest

from controllerd.live_settings import LiveSettings
from controllerd.settings import parse, parse_peers
from remoting.errors import SettingsError
from tests.support.disks import MemoryDisk

PEERS = "n0=127.0.0.1:9876,n1=127.0.0.1:9877,n2=127.0.0.1:9878"


def test_a_node_of_three() -> None:
    settings = parse(["--id", "n1", "--peers", PEERS, "--data", "d", "--set", "raft.tick_ms=20"])
    assert settings.address == "127.0.0.1:9877"
    assert list(settings.peers) == ["n0", "n1", "n2"]
    assert settings.raft.tick_ms == 20
    assert settings.election.unclean is False
    told = LiveSettings(settings, MemoryDisk()).as_properties()
    assert "election.unclean=false\n" in told
    assert f"peers={PEERS}\n" in told


def test_alone_with_defaults() -> None:
    settings = parse(["--data", "d"])
    assert (settings.node_id, settings.peers) == ("n0", {"n0": "127.0.0.1:9876"})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "write id=host:port"),
        ("n0", "write id=host:port"),
        ("n 0=127.0.0.1:1", "write id=host:port"),
        ("n0=127.0.0.1", "write host:port with a port"),
        ("n0=127.0.0.1:0", "port from 1 to 65535"),
        ("n0=127.0.0.1:1,n0=127.0.0.1:2", "twice"),
        ("n0=127.0.0.1:1,n1=127.0.0.1:1", "twice"),
        (",".join(f"n{n}=127.0.0.1:{n + 1}" for n in range(10)), "only make decisions slower"),
    ],
)
def test_bad_peers(text: str, sentence: str) -> None:
    with pytest.raises(SettingsError, match=sentence):
        parse_peers(text)
