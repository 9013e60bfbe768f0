"""The process that forks Spark's Python workers, asked as Spark asks its daemons."""

from __future__ import annotations

import errno
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.spark.daemons import Nursery
from tests.support.cluster import eventually

ROOT = Path(__file__).resolve().parents[4]
INT = struct.Struct("!i")


class Daemon:
    """As Spark holds one: a process, its pipes, and the port that it said."""

    def __init__(self, directory: Path, module: str) -> None:
        self.secret = f"secret of {module}".encode()
        environ = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "JE_ARROW_MALLOC_CONF": "background_thread:false",
            "PYTHON_WORKER_FACTORY_SECRET": self.secret.decode(),
            "SPARK_REUSE_WORKER": "1",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tasks.spark.daemons", "-m", "pyspark.daemon", module],
            cwd=directory,
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        (self.port,) = INT.unpack(self.process.stdout.read(INT.size))
        self.connections: list[socket.socket] = []

    def worker(self) -> int:
        """A new worker's process id, after it knows us by the secret of its daemon."""
        connection = socket.create_connection(("127.0.0.1", self.port), 60)
        self.connections.append(connection)
        (pid,) = INT.unpack(connection.recv(INT.size))
        connection.sendall(INT.pack(len(self.secret)) + self.secret)
        assert connection.recv(6) == INT.pack(2) + b"ok"
        return int(pid)

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        self.process.kill()
        self.process.wait(60)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Daemon, Daemon]]:
    made = [Daemon(tmp_path, module) for module in ("pyspark.worker", "pyspark.sql.worker.create_data_source")]
    yield made[0], made[1]
    for daemon in made:
        daemon.close()


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


def test_the_first_daemon_forks_the_workers_of_all(pair: tuple[Daemon, Daemon]) -> None:
    first, second = pair
    workers = [first.worker(), first.worker(), second.worker()]
    assert {parent(pid) for pid in workers} == {first.process.pid}
    # Spark names one to be killed
    assert first.process.stdin is not None
    first.process.stdin.write(INT.pack(workers[0]))
    first.process.stdin.flush()
    eventually("it is killed", lambda: is_gone(workers[0]))
    assert not is_gone(workers[1])
    # Spark needs the second daemon no more
    second.process.terminate()
    eventually("its worker ended", lambda: is_gone(workers[2]))
    assert not is_gone(workers[1])
    # Spark is gone
    first.process.stdin.close()
    eventually("all ended", lambda: is_gone(workers[1]) and is_gone(first.process.pid))


def test_when_it_is_killed_the_next_daemon_takes_its_place(pair: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    first, second = pair
    first.process.send_signal(signal.SIGKILL)
    assert second.process.wait(60) == 0, "Spark sees its daemon end, and starts another"
    third = Daemon(tmp_path, "pyspark.sql.worker.create_data_source")
    try:
        assert parent(third.worker()) == third.process.pid
    finally:
        third.close()


def test_a_worker_that_cannot_be_forked_ends_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refuse)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as door:
        door.bind(str(tmp_path / "door"))
        door.listen()
        nursery = Nursery(door)
        control, spark = os.pipe()
        port = nursery.take("pyspark.worker", {}, control)
        serving = threading.Thread(target=nursery.serve)
        serving.start()
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", port), 10) as connection:
                assert connection.recv(1) == b""
        os.close(spark)
        serving.join(10)
        assert not serving.is_alive()


def test_anything_else_is_python() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tasks.spark.daemons", "-c", "print(2 + 3)"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == "5\n"
