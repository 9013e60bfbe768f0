"""The brokers' library is built before they start, unless nobody wants it; that it cannot be is told, and stops nothing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from webapp.appliance import native


def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """Stands for Python; leaves what it was called with in a file."""
    path, called = tmp_path / "python", tmp_path / "called"
    path.write_text(f'#!/bin/sh\necho "$@" > {called}\n{script}\n')
    path.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(path))
    return called


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("exit 0", []),
        ("echo no C compiler is there >&2; exit 1", ["no C compiler is there"]),
        ("exit 3", ["exit code 3"]),
    ],
)
def test_what_became_of_it_is_told_only_when_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: list[str]
) -> None:
    called = program(tmp_path, monkeypatch, script)
    said: list[str] = []
    native.build(["send.store_replies=true"], said.append)
    assert called.read_text() == "-m brokerd.native\n"
    assert said == [f"brokers run in Python alone, which costs more processor time: {reason}" for reason in told]


def test_nothing_is_built_that_nobody_wants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    called = program(tmp_path, monkeypatch, "exit 1")
    said: list[str] = []
    native.build(["kernel.mode=python"], said.append)
    assert (called.exists(), said) == (False, [])


def test_a_python_that_does_not_run_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    said: list[str] = []
    native.build([], said.append)
    assert len(said) == 1
