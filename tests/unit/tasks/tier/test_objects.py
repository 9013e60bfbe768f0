"""Objects through their url: a directory, and what is said when the settings are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from remoting.errors import SettingsError
from tasks.tier.objects import NotThere, Objects, TierError, place_of

NAMES = ("LOGBOOM_TIER_URL", "LOGBOOM_TIER_OPTIONS")
NAME = "export/%RETRY%g/date=2026-01-31/3-0-9.parquet"


def objects_at(url: str, options_path: str = "") -> Objects:
    place = place_of(url, options_path, NAMES)
    assert place is not None
    return Objects.open(place, "c", "broker-a")


def test_a_directory_keeps_what_was_put_and_replaces_nothing(tmp_path: Path) -> None:
    objects = objects_at(f"file://{tmp_path}/tier")
    assert objects.put(NAME, b"0123456789")
    assert not objects.put(NAME, b"another")
    assert (objects.get_all(NAME), objects.get(NAME, 3, 2), objects.size(NAME)) == (b"0123456789", b"34", 10)
    assert [each.name for each in objects.list("export")] == [NAME]
    assert [path.name for path in tmp_path.rglob("3-*")] == ["3-0-9.parquet"], "no draft is left"
    with pytest.raises(NotThere):
        objects.get(NAME, 8, 3)
    objects.remove([NAME, NAME])
    with pytest.raises(NotThere):
        objects.size(NAME)
    assert list(objects.list("export")) == []


def test_a_directory_that_refuses_says_so(tmp_path: Path) -> None:
    objects = objects_at(f"file://{tmp_path}")
    objects.put("x", b"")
    (found,) = tmp_path.rglob("x")
    (found.parent / "export").write_bytes(b"a file where a directory should be")
    with pytest.raises(TierError, match=r"did not store export/"):
        objects.put(NAME, b"1")


def test_settings_are_refused_by_their_names(tmp_path: Path) -> None:
    assert place_of("", "", NAMES) is None
    options = tmp_path / "options.json"
    options.write_text('{"region": "x"}')
    options.chmod(0o644)
    with pytest.raises(SettingsError, match=r"LOGBOOM_TIER_OPTIONS=.*chmod 600"):
        objects_at("s3://bucket", str(options))
    options.chmod(0o600)
    with pytest.raises(SettingsError, match=r"LOGBOOM_TIER_OPTIONS has options"):
        objects_at(f"file://{tmp_path}", str(options))
    with pytest.raises(SettingsError, match=r"LOGBOOM_TIER_URL=ftp://x: write file:///directory"):
        objects_at("ftp://x")
    options.write_text("[1]")
    with pytest.raises(SettingsError, match="one JSON object of texts"):
        objects_at("s3://bucket", str(options))
