from __future__ import annotations

import pytest

from brokerd.metadata.tier_policy import problem_of


@pytest.mark.parametrize("value", ["parquet", "none"])
def test_an_export_is_asked_for_by_name(value: str) -> None:
    assert problem_of("tier.export", value) is None


@pytest.mark.parametrize("value", ["", "true", "Parquet", "orc"])
def test_another_form_is_refused(value: str) -> None:
    assert problem_of("tier.export", value) == "parquet or none"
