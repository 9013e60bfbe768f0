"""What `make audit` says: clean, weak, or that nobody was there to ask."""

from __future__ import annotations

import orjson
import pytest

from tests.audit import CLEAN, UNKNOWN, WEAK, verdict

SOUND = {"name": "a", "version": "1", "vulns": []}
WORN = {"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}
SKIPPED = {"name": "c", "skip_reason": "unknown"}


@pytest.mark.parametrize(
    ("packages", "code", "last"),
    [
        ([SOUND], CLEAN, "of 1 packages the database knows no weakness"),
        ([SOUND, WORN], WEAK, "b 2: CVE-1, mended in 2.1"),
        ([SOUND, SKIPPED], UNKNOWN, "c was not looked up: unknown"),
        ([SKIPPED, WORN], WEAK, "b 2: CVE-1, mended in 2.1"),
    ],
)
def test_what_a_database_says(packages: list[object], code: int, last: str) -> None:
    said = verdict(orjson.dumps({"dependencies": packages}).decode(), "Found something")
    assert (said[0], said[1][-1]) == (code, f"audit: {last}")


def test_no_database_is_not_a_clean_bill() -> None:
    code, (line,) = verdict("", "INFO: x\nERROR:pip_audit: Could not connect\n")
    assert code == UNKNOWN
    assert "nothing is known of what is locked (ERROR:pip_audit: Could not connect)" in line
