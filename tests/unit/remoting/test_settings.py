"""Settings: overrides are typed, bounded, and refused with the rule."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from remoting.errors import SettingsError
from remoting.settings import describe, override, setting


@dataclass(frozen=True, slots=True)
class Flush:
    mode: str = setting("sync", "when an append counts as stored", choices=("sync", "background"))
    interval_ms: int = setting(500, "pause between background syncs", minimum=1, maximum=60_000)
    checked: bool = setting(True, "verify on recovery")


def test_an_override_is_parsed_by_the_fields_type() -> None:
    changed = override({"flush": Flush()}, ["flush.interval_ms=20", "flush.checked=false", "flush.mode=background"])
    assert changed["flush"] == Flush("background", 20, False)
    assert "flush.interval_ms=500: pause" in describe({"flush": Flush()})


@pytest.mark.parametrize(
    ("assignment", "rule"),
    [
        ("flush", "part.key=value"),
        ("flush.nope=1", "there is no setting flush.nope"),
        ("flush.interval_ms=fast", "must be a int"),
        ("flush.interval_ms=0", "at least 1"),
        ("flush.interval_ms=60001", "at most 60000"),
        ("flush.checked=perhaps", "true or false"),
        ("flush.mode=never", "one of sync, background"),
    ],
)
def test_a_bad_override_is_refused_with_the_rule(assignment: str, rule: str) -> None:
    with pytest.raises(SettingsError, match=rule):
        override({"flush": Flush()}, [assignment])
