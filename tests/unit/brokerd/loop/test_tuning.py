"""The limit of open files: raised as far as it may be, and said where that is too little."""

from __future__ import annotations

import resource

import pytest

from brokerd.loop import tuning

NONE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("limits", "raised_to", "warns"),
    [
        ((1024, 1 << 20), 24_000, False),
        ((1024, NONE), 24_000, False),
        ((1024, 4096), 4096, True),
        ((4096, 4096), None, True),
        ((24_000, 24_000), None, False),
        ((NONE, NONE), None, False),
    ],
)
def test_open_files(limits, raised_to, warns, monkeypatch, caplog) -> None:
    set_to: list[tuple[int, tuple[int, int]]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda kind, value: set_to.append((kind, value)))
    tuning.allow_files(10_000, 10_000)
    assert set_to == ([] if raised_to is None else [(resource.RLIMIT_NOFILE, (raised_to, limits[1]))])
    assert bool(caplog.records) == warns
    if warns:
        assert "10000 remoting clients and grpc.max_connections=10000 up to 24000" in caplog.text
