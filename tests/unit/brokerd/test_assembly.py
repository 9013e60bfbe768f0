"""A broker as a whole. One that cannot start leaves the directory to whoever can mend it, and the error says what is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.assembly import Broker
from brokerd.composition.settings import parse
from brokerd.native import library
from brokerd.processors.sending.send import SendProcessor
from brokerd.replication.epochs.epoch_file import EPOCH_FILE, MASTER_EPOCH_FILE
from remoting.disk import LocalDisk
from remoting.errors import CorruptedFile


@pytest.mark.parametrize(
    "name", [EPOCH_FILE, MASTER_EPOCH_FILE, "incarnation", "lives", "brokerIdentity", "settings.json"]
)
async def test_a_directory_with_a_rotten_file_is_left_to_who_can_mend_it(tmp_path: Path, name: str) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / name).write_bytes(b"rotten")
    settings = parse(["--data", str(data), "--controllers", "127.0.0.1:9876"])
    for _ in range(2):
        with pytest.raises(CorruptedFile, match=name):
            Broker(settings, library.Choice(None), ask_first=True)
    LocalDisk(data).close()


async def test_what_waits_beside_the_loop_is_in_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SendProcessor, "waiting_elsewhere", (3, 40))
    settings = parse(["--data", str(tmp_path / "data"), "--controllers", "127.0.0.1:9876"])
    broker = Broker(settings, library.Choice(None))
    try:
        figures = broker._figures()
        assert (figures.waiting_sends, figures.oldest_wait_ms) == (3, 40)
    finally:
        broker.core.close()
        broker._client.close()
        broker.core.store.close()
        broker._disk.close()
