"""A tier that cannot be opened at a start: it is said, and tried again with each request."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerd.tiers.objects.interface import Refused
from brokerd.tiers.objects.late import open_sooner_or_later
from brokerd.tiers.settings import TierSettings
from remoting.errors import SettingsError


async def test_a_directory_that_is_not_there_yet_is_opened_when_it_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = tmp_path / "place"
    place.write_bytes(b"in its place")
    objects = open_sooner_or_later(TierSettings(url=f"file://{place}/tier"), "c/broker-a")
    assert "sends go on" in caplog.text
    with pytest.raises(Refused, match="the directory cannot be used"):
        await objects.put("a", b"1")
    with pytest.raises(Refused, match="the directory cannot be used"):
        await objects.append("a", 1, [b"2"])
    assert not objects.appends
    place.unlink()
    await objects.put("a", b"1")
    assert objects.appends
    await objects.append("a", 1, [b"2"])
    assert await objects.get_all("a", 10) == b"12"
    assert [each.name for each in await objects.list("a")] == ["a"]


async def test_options_that_cannot_be_read_are_read_when_they_can_be(tmp_path: Path) -> None:
    options = tmp_path / "options"
    settings = TierSettings(url="s3://bucket/prefix", options_path=str(options), request_timeout_ms=100)
    objects = open_sooner_or_later(settings, "c/broker-a")
    with pytest.raises(Refused, match=r"tiers\.options_path"):
        await objects.get("a", 0, 1)


def test_a_url_of_no_store_keeps_a_broker_from_starting() -> None:
    with pytest.raises(SettingsError, match="write file:///directory"):
        open_sooner_or_later(TierSettings(url="ftp://a/b"), "c/broker-a")
