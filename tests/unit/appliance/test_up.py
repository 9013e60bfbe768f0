"""What `up` answers before it starts anything: one sentence and an exit code."""

from __future__ import annotations

import asyncio
import datetime
import io
import os
import socket

import pytest

from tests.unit.appliance.test_preflight import options_with_free_ports
from webapp.appliance import certificates, preflight, up
from webapp.appliance.layout import DataLayout
from webapp.appliance.options import Options, Shape
from webapp.appliance.reach import Secure
from webapp.appliance.terminal import Terminal


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = up.main(arguments)
    said = capsys.readouterr()
    assert "Traceback" not in said.out + said.err
    return code, said.out.splitlines()[-1]


def test_a_bad_option(capsys: pytest.CaptureFixture[str]) -> None:
    code, last = run(capsys, "--replicas", "many")
    assert code == 2
    assert last == (
        "up: argument --replicas: 'many' is not a whole number from 1 to 9; `manage.py up --help` explains every option"
    )


def test_a_second_instance(layout: DataLayout, capsys: pytest.CaptureFixture[str]) -> None:
    lock = preflight.InstanceLock(layout)
    try:
        code, last = run(capsys, "--data", str(layout.root))
    finally:
        lock.close()
    assert code == 1
    assert last.startswith(f"up: another appliance (process {os.getpid()}) is running on {layout.root}; stop that one")


def test_a_taken_port(layout: DataLayout, capsys: pytest.CaptureFixture[str]) -> None:
    options = options_with_free_ports()
    arguments = ["--data", str(layout.root), "--controllers", "1", "--replicas", "1"]
    for option, port in (
        ("--controller-port", options.controller_port),
        ("--broker-port", options.broker_port),
        ("--grpc-port", options.grpc_port),
    ):
        arguments += [option, str(port)]
    with socket.create_server(("127.0.0.1", options.http_port)):
        code, last = run(capsys, *arguments, "--http", f"127.0.0.1:{options.http_port}")
    assert code == 1
    assert last.startswith(f"up: port {options.http_port}, which web needs, is taken by ")
    assert "--http" in last
    assert not layout.shape_file.exists()
    assert not layout.supervisor_file.exists()


def test_a_place_that_cannot_be_written(layout: DataLayout, capsys: pytest.CaptureFixture[str]) -> None:
    layout.shape_file.write_text("")
    code, last = run(capsys, "--data", str(layout.shape_file / "data"))
    assert code == 1
    assert last.startswith(f"up: cannot write to {layout.shape_file}/data (Not a directory); make it writable")


def test_a_redis_that_does_not_answer(
    layout: DataLayout, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:1/0")
    code, last = run(capsys, "--data", str(layout.root))
    assert code == 1
    assert last.startswith("up: the Redis that REDIS_URL names does not answer")


async def test_certificates_are_renewed_while_it_runs(layout: DataLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "CERTIFICATES_EVERY_S", 0.001)
    now = datetime.datetime.now(datetime.UTC)
    certificates.keep_fresh(layout, (), now - datetime.timedelta(days=340))
    key, old = layout.tls_key_file.read_bytes(), layout.tls_certificate_file.read_bytes()
    told = io.StringIO()
    options = Options(secure=Secure("logs.example.com"))
    task = asyncio.create_task(up._renew_certificates(options, layout, Terminal(told)))
    async with asyncio.timeout(10):
        while "made the certificate for TLS in" not in told.getvalue():
            await asyncio.sleep(0)
        assert layout.tls_certificate_file.read_bytes() != old
        assert layout.tls_key_file.read_bytes() == key
        layout.tls_authority_key_file.write_text("damaged")
        while "ca.key is damaged" not in told.getvalue():
            await asyncio.sleep(0)
    assert not task.done(), "a sentence on the terminal is all that a failure ends in"
    task.cancel()


def test_a_size_that_cannot_change(layout: DataLayout, capsys: pytest.CaptureFixture[str]) -> None:
    preflight.write_remembered(layout, preflight.Remembered(Shape(controllers=1)))
    code, last = run(capsys, "--data", str(layout.root), "--controllers", "3")
    assert code == 1
    assert "was made with 1 controller(s)" in last
