"""The Spark session of this worker process: one, made after the fork, kept from report to report.

A new session per report would leak processes in the server; a session made before the fork would share gRPC's threads and locks
with the parent. So pyspark is imported on first use, and the session belongs to the process that made it.
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

from tasks.spark.lease import Lease, SparkUnavailable
from tasks.spark.settings import SparkSettings

log = logging.getLogger(__name__)

USER = "logboom"
_PROJECT_DIR = Path(__file__).resolve().parents[2]
_SHIPPED_PACKAGES = ("remoting", "tasks/spark")
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
            try:
                session, is_new = self._session_at(url, ship=not settings.is_local)
            except SparkUnavailable as error:
                lease.say("broken", why=str(error))
                raise
            if is_new:
                lease.say("session")
            yield SparkHandle(session, lease)

    def close(self) -> None:
        """End the session and its connection; the process is about to end, or its server did."""
        session, self._session, self._url = self._session, None, ""
        if session is None or self._pid != os.getpid():
            return
        # the server may be gone already: then there is nothing to release, and trying would only wait
        session.release_session_on_close = False
        _close_channel(session)

    def _session_at(self, url: str, *, ship: bool) -> tuple[Any, bool]:
        with self._lock:
            if self._session is not None and (self._url, self._pid) == (url, os.getpid()) and _works(self._session):
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
            session.release_session_on_close = False
            _close_channel(session)
        raise SparkUnavailable(f"Spark at {shown} does not work: {_first_line(error)}") from error
    log.info("session %s at %s", session.session_id, shown)
    return session


def _works(session: Any) -> bool:
    """Whether the server still knows the session: servers forget those that were not used for a while."""
    import grpc
    from pyspark.errors import PySparkException

    try:
        session.conf.get("spark.sql.session.timeZone")
    except (PySparkException, grpc.RpcError) as error:
        log.info("session %s is gone: %s", session.session_id, _first_line(error))
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


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:500]
