"""Whoever is on the machine can dial Spark's ports: none of them listens to who has no secret."""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.reports.conftest import SparkProcess

pytestmark = pytest.mark.slow

_LISTENS = "0A"
_RPC_REQUEST = 3
_HEAD = struct.Struct(">QBQI")  # length of all, kind, number of the request, length of the body
_DEADLINE_S = 20


def listening_ports(session: int) -> list[int]:
    """Of all processes of that session, on IPv4 and IPv6."""
    sockets = set()
    for process in Path("/proc").iterdir():
        try:
            if process.name.isdigit() and os.getsid(int(process.name)) == session:
                sockets |= {os.readlink(each) for each in (process / "fd").iterdir()}
        except OSError:
            continue  # it has ended
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and f"socket:[{fields[9]}]" in sockets:
                found.append(int(fields[1].rpartition(":")[2], 16))
    return sorted(set(found))


def answer_to_a_stranger(port: int) -> bytes:
    """What the port says to a request as Spark's own processes make them, of somebody who did not prove who he is."""
    body = b"\x01" * 40
    with socket.create_connection(("127.0.0.1", port), _DEADLINE_S) as stranger:
        stranger.sendall(_HEAD.pack(_HEAD.size + len(body), _RPC_REQUEST, 7, len(body)) + body)
        return stranger.recv(65_536)


def test_no_port_of_spark_listens_to_a_stranger(spark: Any, spark_process: SparkProcess) -> None:
    assert spark.range(3).count() == 3, "it works for who has the token"
    session = os.getsid(spark_process.process.pid)
    ports = listening_ports(session)
    answers = {port: answer_to_a_stranger(port) for port in ports}
    own_protocol = [answer for answer in answers.values() if b"Exception" in answer]
    assert len(own_protocol) == 2, f"the driver's and the block manager's: {answers}"
    assert all(b"Expected SaslMessage" in answer for answer in own_protocol), "a secret is asked for first"
