"""The limit of open files: raised as far as it may be, and said where that is too little."""

from __future__ import annotations

import resource

import pytest

from brokerd.loop import tuning

NONE = resource.RLIM_INFINITY
ALL = 15_000, 5_000


@pytest.mark.parametrize(
    ("limits", "raised_to", "clients"),
    [
        ((1024, 1 << 20), 24_000, ALL),
        ((1024, NONE), 24_000, ALL),
        ((1024, 20_000), 20_000, (12_000, 4000)),
        ((1024, 4096), 4096, (1536, 512)),
        ((4096, 4096), None, (1536, 512)),
        ((100, 100), None, (37, 12)),
        ((24_000, 24_000), None, ALL),
        ((NONE, NONE), None, ALL),
    ],
)
def test_open_files(limits, raised_to, clients, monkeypatch, caplog) -> None:
    """The log's files have theirs first, whatever is left for clients."""
    set_to: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, value: set_to.append((kind, value)))
    assert tuning.allow_files(*ALL) == clients
    assert set_to == ([] if raised_to is None else [(resource.RLIMIT_NOFILE, (raised_to, limits[1]))])
    assert bool(caplog.records) == (clients != ALL)
    if clients != ALL:
        told = f"so {clients[0]} remoting clients may be connected (flow.max_connections=15000), and {clients[1]} over gRPC"
        assert told in caplog.text
        assert "raise the hard limit to 24000" in caplog.text
