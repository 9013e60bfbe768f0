"""The one process that Spark's Python workers are forked from.

    PYTHON -m tasks.spark.daemons -m pyspark.daemon [MODULE]

Spark starts a daemon for each kind of worker, and each worker that a daemon forks loads pyspark, pyarrow, pandas and our source
anew: about a second of CPU time, four times before a report's first row, and again after each minute without work. So Spark is
given a Python of ours. The first daemon that it starts loads everything once and forks the workers of all of them: the others
hand it their pipes, and stay only so that Spark can end them. What a worker then does is pyspark's own code.

Invariants: there is one thread where workers are forked (otherwise this process becomes the daemon that Spark asked for, and
nothing is shared); a worker sees the environment of its own daemon; when a daemon's pipe or link closes, its workers end.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import selectors
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final, NoReturn

log = logging.getLogger(__name__)

SOCKET: Final = "forks.sock"
"""In the working directory, which all of Spark's processes share."""

_LOADED: Final = (
    "pandas",
    "pyarrow.compute",
    "pyspark.daemon",
    "pyspark.worker",
    "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.plan_data_source_read",
    "tasks.spark.source",
)
_HAND_OVER_S: Final = 10.0
_LOOK_EVERY_S: Final = 1.0
_LENGTH: Final = struct.Struct("!i")


@dataclass(slots=True)
class Daemon:
    """What Spark takes for a daemon: where it connects for a worker, and the pipe by which it has one killed."""

    module: str
    environ: dict[str, str]
    control: int
    listener: socket.socket
    link: socket.socket | None = None
    workers: set[int] = field(default_factory=set)


class Nursery:
    """Forks the workers of all daemons, until the last of them is gone."""

    def __init__(self, door: socket.socket) -> None:
        self._door = door
        self._daemons: list[Daemon] = []
        self._selector = selectors.DefaultSelector()
        self._selector.register(door, selectors.EVENT_READ, self._welcome)

    def take(self, module: str, environ: dict[str, str], control: int, link: socket.socket | None = None) -> int:
        """Serve one more daemon; the port where Spark finds it."""
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        daemon = Daemon(module, environ, control, listener, link)
        self._daemons.append(daemon)
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._fork(daemon))
        self._selector.register(daemon.control, selectors.EVENT_READ, lambda: self._obey(daemon))
        if link is not None:
            self._selector.register(link, selectors.EVENT_READ, lambda: self._drop(daemon))
        port: int = listener.getsockname()[1]
        return port

    def serve(self) -> None:
        """Until no daemon is left."""
        while self._daemons:
            for key, _ in self._selector.select(_LOOK_EVERY_S):
                # an event before it may have closed this one
                if key.fd in self._selector.get_map():
                    react: Callable[[], None] = key.data
                    react()
            self._reap()

    def close(self) -> None:
        """End all workers."""
        for daemon in list(self._daemons):
            self._drop(daemon)

    def _welcome(self) -> None:
        link, _ = self._door.accept()
        link.settimeout(_HAND_OVER_S)
        try:
            head, (control, answer), _, _ = socket.recv_fds(link, _LENGTH.size, 2)
            (length,) = _LENGTH.unpack(head)
            body = b""
            while len(body) < length and (part := link.recv(length - len(body))):
                body += part
            told = json.loads(body)
            os.write(answer, _LENGTH.pack(self.take(told["module"], told["environ"], control, link)))
            os.close(answer)
        except (OSError, ValueError, struct.error) as error:
            log.warning("a daemon did not say what it is: %s", error)
            link.close()

    def _obey(self, daemon: Daemon) -> None:
        """Spark names a worker to kill, or closes the pipe because it needs the daemon no more."""
        word = os.read(daemon.control, _LENGTH.size)
        if len(word) < _LENGTH.size:
            self._drop(daemon)
        elif (pid := _LENGTH.unpack(word)[0]) in daemon.workers:
            os.kill(pid, signal.SIGKILL)

    def _drop(self, daemon: Daemon) -> None:
        self._daemons.remove(daemon)
        for each in (daemon.listener, daemon.control, daemon.link):
            if each is not None:
                self._selector.unregister(each)
        daemon.listener.close()
        os.close(daemon.control)
        if daemon.link is not None:
            daemon.link.close()
        for pid in daemon.workers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGHUP)

    def _reap(self) -> None:
        with suppress(ChildProcessError):
            while (pid := os.waitpid(-1, os.WNOHANG)[0]) != 0:
                for daemon in self._daemons:
                    daemon.workers.discard(pid)

    def _fork(self, daemon: Daemon) -> None:
        connection, _ = daemon.listener.accept()
        try:
            pid = os.fork()
        except OSError as refusal:
            # Spark does the task again; those who work go on
            log.warning("a worker cannot be forked: %s", refusal)
            connection.close()
            return
        if pid:
            daemon.workers.add(pid)
            connection.close()
            return
        try:
            self._leave()
            _work(daemon, connection)
        finally:
            # whatever happened, this process must not go on as its parent
            error = sys.exception()
            if error is not None:
                traceback.print_exception(error)
            os._exit(0 if error is None else 1)

    def _leave(self) -> None:
        """In a worker: nothing of the nursery's is its own."""
        self._selector.close()
        self._door.close()
        for each in self._daemons:
            each.listener.close()
            os.close(each.control)
            if each.link is not None:
                each.link.close()


def _work(daemon: Daemon, connection: socket.socket) -> None:
    """As a worker: what pyspark's daemon does in one."""
    from pyspark.daemon import worker
    from pyspark.util import enable_faulthandler

    os.environ.clear()
    os.environ.update(daemon.environ)
    sys.argv = ["pyspark.daemon", daemon.module]
    known = set(sys.path)
    sys.path[:0] = [
        each for each in daemon.environ.get("PYTHONPATH", "").split(os.pathsep) if each and each not in known
    ]
    connection.sendall(_LENGTH.pack(os.getpid()))
    authenticated, reused = False, bool(daemon.environ.get("SPARK_REUSE_WORKER"))
    with enable_faulthandler():
        while True:
            code = worker(connection, authenticated)
            if code or not reused:
                with suppress(OSError):
                    while connection.recv(1024):
                        pass
                return
            authenticated = True
            gc.collect()


def _hand_over(nursery: socket.socket, module: str) -> None:
    """Give our pipes to the one that forks, and stay as long as it serves them."""
    body = json.dumps({"module": module, "environ": dict(os.environ)}).encode()
    socket.send_fds(nursery, [_LENGTH.pack(len(body))], [0, 1])
    nursery.sendall(body)
    # Spark reads what comes from here until all who have the pipe closed it
    while nursery.recv(1):
        pass


def _connect() -> socket.socket | None:
    nursery = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        nursery.connect(SOCKET)
    except OSError:
        nursery.close()
        return None
    return nursery


def _listen() -> socket.socket | None:
    """The door of a nursery; None when somebody else opens one just now."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    draft = f"{SOCKET}.{os.getpid()}"
    door.bind(draft)
    door.listen()
    try:
        os.link(draft, SOCKET)
    except OSError:
        door.close()
        return None
    finally:
        os.unlink(draft)
    return door


def _is_alone() -> bool:
    return len(os.listdir("/proc/self/task")) == 1


def _become_python(arguments: list[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, *arguments])


def _run_daemon(arguments: list[str], module: str) -> None:
    nursery = _connect()
    if nursery is None:
        # one whose owner died is in the way
        with suppress(FileNotFoundError):
            os.unlink(SOCKET)
        door = _listen()
        if door is not None:
            _run_nursery(door, arguments, module)
            return
        nursery = _connect()
    if nursery is None:
        _become_python(arguments)
    _hand_over(nursery, module)


def _run_nursery(door: socket.socket, arguments: list[str], module: str) -> None:
    for name in _LOADED:
        import_module(name)
    if not _is_alone():
        log.warning("a library started a thread: Spark's Python workers share nothing")
        os.unlink(SOCKET)
        _become_python(arguments)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    control = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # what a worker reads from is nobody's
    os.close(null)
    served = Nursery(door)
    try:
        os.write(1, _LENGTH.pack(served.take(module, dict(os.environ), control)))
        served.serve()
    finally:
        served.close()


def main() -> None:
    """Be the daemon that Spark asks for; for anything else, Python as it is."""
    arguments = sys.argv[1:]
    is_tcp = not any(
        os.environ.get(name, "").lower() == "true" for name in ("PYTHON_UNIX_DOMAIN_ENABLED", "SPARK_PREFER_IPV6")
    )
    if arguments[:2] == ["-m", "pyspark.daemon"] and is_tcp:
        _run_daemon(arguments, arguments[2] if len(arguments) > 2 else "pyspark.worker")
    else:
        _become_python(arguments)


if __name__ == "__main__":
    main()
