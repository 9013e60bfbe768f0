"""An appliance whose object store does not do what it should: it starts, takes messages, and says why they stay where they are.

The bucket is missing when it starts; later the store accepts nobody's credentials, does not answer any more, and loses the bucket
with all that is in it; then the disk of another tier is full. Each time the console's API says what to do, sends go on, and when
somebody did it all messages are uploaded.
"""

from __future__ import annotations

import http.client
import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from remoting.client.blocking import AdminClient
from remoting.transport.identity import NOBODY
from tests.support.appliance import CONTROLLER, HTTP, Appliance
from tests.support.cluster import eventually
from tests.support.object_servers import S3Server, write_options
from tests.tier.appliance import GROUP, SMALL, SOON, TOPIC, done, is_uploaded

_BUCKET: Final = "made-later"
_PATIENCE_S: Final = 120
_MESSAGES: Final = 20
_BODY_BYTES: Final = 10_000
_DISK: Final = "size=256k"


def run(root: Path) -> int:
    """How many troubles were told and came to an end. Raises AssertionError."""
    with S3Server() as server:
        options = write_options(root / "options", server.port)
        arguments = ("--tier", f"s3://{_BUCKET}/appliance", "--tier-options", str(options))
        with _appliance(root / "s3", *arguments) as store:
            assert "healthy but for the tier" in store.appliance.said, store.appliance.said
            assert "there is no such bucket: create it" in store.appliance.said, store.appliance.said
            store.try_trouble("there is no such bucket: create it", lambda: server.make_bucket(_BUCKET))
            server.refuse(everybody=True)
            store.try_trouble("does not accept the credentials", lambda: server.refuse(everybody=False))
            server.freeze()
            store.try_trouble("does not answer", server.thaw)
            server.forget()
            store.try_trouble("there is no such bucket: create it", lambda: server.make_bucket(_BUCKET))
    with _small_disk(root / "disk"), _appliance(root / "file", "--tier", f"file://{root}/disk") as store:
        store.try_trouble("it is full: make room there", lambda: _remount(root / "disk", "size=64m"))
    return 5


class _Store:
    """The object store of an appliance."""

    def __init__(self, appliance: Appliance) -> None:
        self.appliance = appliance
        self._admin = AdminClient([f"127.0.0.1:{appliance.base + CONTROLLER}"], identity=NOBODY)
        self._sent = 0
        done(appliance, "topic", "create", TOPIC)
        ended = appliance.manage("token", "create", "looks", "--scope", "cluster.read", "--days", "1")
        self._token = ended.stdout.split()[-1]

    def try_trouble(self, sentence: str, mend: Callable[[], None]) -> None:
        """The console tells of it, and sends go on; when it is mended, all is uploaded."""
        self._send()
        eventually(f"the console says {sentence!r}", lambda: sentence in self._reasons(), _PATIENCE_S)
        print(f"the console says: {self._reasons()}", flush=True)
        self._send()
        mend()
        eventually("all of it is uploaded", lambda: is_uploaded(self._admin, self._sent), _PATIENCE_S)
        eventually("the console says nothing any more", lambda: not self._reasons(), _PATIENCE_S)

    def _send(self) -> None:
        for _ in range(_MESSAGES):
            self._admin.send(TOPIC, bytes(_BODY_BYTES), group=GROUP)
        self._sent += _MESSAGES

    def _reasons(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.appliance.base + HTTP, timeout=_PATIENCE_S)
        try:
            connection.request("GET", "/api/v1/cluster", headers={"Authorization": f"Bearer {self._token}"})
            answer: Any = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return " ".join(each["text"] for each in answer["verdict"]["reasons"] if each["code"].startswith("tier"))


@contextmanager
def _appliance(root: Path, *arguments: str) -> Iterator[_Store]:
    root.mkdir()
    appliance = Appliance(root, *SMALL, *SOON, *arguments)
    try:
        appliance.process = appliance.next_process()
        appliance.process.start()
        eventually("it says that it runs", lambda: "Ctrl-C stops everything." in appliance.said, _PATIENCE_S)
        yield _Store(appliance)
    finally:
        appliance.process.close()


@contextmanager
def _small_disk(path: Path) -> Iterator[None]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", _DISK, "tmpfs", path], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def _remount(path: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", path], check=True)
