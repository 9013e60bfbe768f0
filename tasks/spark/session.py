"""The way of this worker process to the Spark session: one client, made after the fork, kept from report to report.

A new session per report or worker would leak processes in the server, so all workers use the one that the server's address names;
each has a client of its own, and what one closes is only that. A client made before the fork would share gRPC's threads and
locks with the parent: so pyspark is imported on first use, and the client belongs to the process that made it. With a Spark
Connect server that somebody else runs, each worker has a session of its own.
"""

from __future__ import annotations

import io
import logging
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tasks.spark.errors import reason
from tasks.spark.lease import Lease, SparkUnavailable
from tasks.spark.settings import SparkSettings

log = logging.getLogger(__name__)

USER = "logboom"
_PROJECT_DIR = Path(__file__).resolve().parents[2]
_SHIPPED_PACKAGES = ("remoting", "tasks/spark", "tasks/tier")
_SHIPPED_FILES = ("tasks/__init__.py",)


class SparkHandle:
    """Spark as a report uses it."""

    def __init__(self, session: Any, lease: Lease | None) -> None:
        self.session = session
        self._lease = lease

    @property
    def session_id(self) -> str:
        """By which any process of the same user can interrupt what this one runs."""
        return str(self.session.session_id)

    def problem(self) -> str | None:
        """Why the server is gone, if it is."""
        return self._lease.problem() if self._lease is not None else None


class Sessions:
    """Makes and keeps the session of one process."""

    def __init__(self) -> None:
        self._session: Any = None
        self._url = ""
        self._pid = 0
        self._lock = threading.Lock()

    @contextmanager
    def use(
        self, settings: SparkSettings, waiting: Callable[[str], None], is_cancelled: Callable[[], bool]
    ) -> Iterator[SparkHandle]:
        """Spark for the length of the block. Raises SparkUnavailable with the reason when there is none."""
        if settings.is_external:
            session, _ = self._session_at(settings.master, ship=True)
            yield SparkHandle(session, None)
            return
        with Lease(settings.socket_path) as lease:
            # loading takes as long as a third of the server's start: do it meanwhile
            import_module("pyspark.sql.connect.session")
            url, _ = lease.wait_ready(waiting, is_cancelled)
            if not self._is_at(url):
                waiting("Spark listens; its first query is on its way")
            try:
                session, is_new = self._session_at(url, ship=not settings.is_local)
            except SparkUnavailable as error:
                lease.say("broken", why=str(error))
                raise
            if is_new:
                lease.say("session")
            yield SparkHandle(session, lease)

    def close(self) -> None:
        """End this process's client; the next use makes another."""
        session, self._session, self._url = self._session, None, ""
        if session is None or self._pid != os.getpid():
            return
        _close_channel(session)

    def _is_at(self, url: str) -> bool:
        return self._session is not None and (self._url, self._pid) == (url, os.getpid())

    def _session_at(self, url: str, *, ship: bool) -> tuple[Any, bool]:
        with self._lock:
            if self._is_at(url) and _works(self._session):
                return self._session, False
            self.close()
            self._session = _make_session(url, ship=ship)
            self._url, self._pid = url, os.getpid()
            return self._session, True


sessions = Sessions()


def _make_session(url: str, *, ship: bool) -> Any:
    """A session whose first query succeeded. Raises SparkUnavailable."""
    import grpc
    from pyspark.errors import PySparkException
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession

    from tasks.spark.source import LogboomSource

    # without it the functions of pyspark.sql look for a JVM in this process
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    shown = url.partition(";")[0]
    session: Any = None
    try:
        session = SparkSession(connection=DefaultChannelBuilder(url), userId=USER)
        # others may use the session that we share with them; it ends with the server
        session.release_session_on_close = False
        # the default goes on trying for ten minutes when nobody is there
        session.client.set_retry_policies(
            [DefaultPolicy(max_retries=4, initial_backoff=50, max_backoff=500, jitter=50, min_jitter_threshold=100)]
        )
        session.conf.set("spark.sql.session.timeZone", "UTC")
        if ship:
            _ship_code(session)
        session.dataSource.register(LogboomSource)
        session.sql("select 1").toArrow()
    except (PySparkException, grpc.RpcError, OSError, ValueError, RuntimeError) as error:
        if session is not None:
            _close_channel(session)
        raise SparkUnavailable(f"Spark at {shown} does not work: {reason(error)}") from error
    log.info("session %s at %s", session.session_id, shown)
    return session


def _works(session: Any) -> bool:
    """Whether the server still knows the session: servers forget those that were not used for a while."""
    import grpc
    from pyspark.errors import PySparkException

    try:
        session.conf.get("spark.sql.session.timeZone")
    except (PySparkException, grpc.RpcError) as error:
        log.info("session %s is gone: %s", session.session_id, reason(error))
        return False
    return True


def _close_channel(session: Any) -> None:
    """Close the connection for good: a session that is collected later must find nothing left to close."""
    closing = threading.Thread(target=session.client.close, name="closing Spark", daemon=True)
    closing.start()
    closing.join(timeout=5)


def _ship_code(session: Any) -> None:
    """Give a cluster whose machines do not have our code what the source needs."""
    with TemporaryDirectory() as directory:
        archive = Path(directory) / "logboom.zip"
        archive.write_bytes(shipped_code())
        session.addArtifacts(str(archive), pyfile=True)


def shipped_code() -> bytes:
    """The packages that run inside Spark's Python workers, as a zip."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for package in _SHIPPED_PACKAGES:
            for path in sorted((_PROJECT_DIR / package).rglob("*.py")):
                archive.write(path, path.relative_to(_PROJECT_DIR).as_posix())
        for name in _SHIPPED_FILES:
            archive.write(_PROJECT_DIR / name, name)
    return content.getvalue()
