"""The report: the same figures in JSON, in the table and in the picture, and a page that needs nothing from anywhere."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from typing import Any

from tests.chaos.history import FaultWindow, View
from tests.chaos.report import document_of, rates, summary, table
from tests.chaos.run import Options, Played
from tests.chaos.scenarios import SCENARIOS
from tests.chaos.test_checks import healthy
from tests.chaos.timeline import page
from tests.chaos.verdict import judge


def played() -> Played:
    history, aftermath = healthy()
    history.faults.append(FaultWindow("M1 #1", 3.0, 9.0, {"killed": ["b0"], "master": "b0"}, [("b0 is <gone>", True)]))
    history.silences.append((3.0, "b0"))
    history.marks.append((4.0, "b1 elected"))
    history.views.append(View(5.05, 5.15, "c1", False, 1, 2, 4, "b1", ("b1", "b2")))
    scenario = next(each for each in SCENARIOS if each.id == "M1")
    return Played(judge(scenario, history, aftermath), history, aftermath, 0.0, 12.0, ["told"])


def document() -> dict[str, Any]:
    return document_of([played()], Options(), "2026-01-01 00:00 UTC")


def test_the_document_is_json_and_complete() -> None:
    (scenario,) = json.loads(json.dumps(document()))["scenarios"]
    assert scenario["ok"] == 11
    assert scenario["failed"] == 1
    assert scenario["unknown"] == 1
    assert [each["node"] for each in scenario["masters"]] == ["b0", "b1"]
    assert scenario["windows"][0]["evidence"] == [{"what": "b0 is <gone>", "in_force": True}]
    assert [each["state"] for each in scenario["lanes"]["b0"]] == ["master", "silent", "replica"]
    assert scenario["problems"].keys() == {"IN FORCE"}, "too few sends for a real one"


def test_rates_count_every_send_once() -> None:
    history, _ = healthy()
    counted = rates(history, 0.0, 12.0)
    assert sum(counted["ok"]) * counted["step_s"] == 11
    assert sum(counted["failed"]) * counted["step_s"] == sum(counted["unknown"]) * counted["step_s"] == 1


def test_the_table_has_a_row_for_each_scenario() -> None:
    text = table([played().verdict])
    assert text.splitlines()[0].split()[:3] == ["scenario", "what", "faults"]
    assert "kill the master" in text
    assert text.endswith("FAILED IN FORCE")


def test_the_page_says_what_the_document_says() -> None:
    text = page(document())
    assert "kill the master" in text
    assert "b0 is &lt;gone&gt;" in text
    assert "killed b0" in text
    assert summary(document())["acknowledged"] == 11


def test_the_page_loads_nothing_and_is_well_formed() -> None:
    text = page(document())
    assert not re.search(r"(src|href)=\"(?!#)|url\(|@import|https?://", text)
    for picture in re.findall(r"<svg.*?</svg>", text, re.DOTALL):
        ElementTree.fromstring(picture)
    assert text.count("<svg") == 1


def test_a_run_without_a_send_can_be_drawn() -> None:
    empty = document()
    (scenario,) = empty["scenarios"]
    scenario.update(
        length_s=0.0,
        lanes={},
        masters=[],
        sets=[],
        sends_end_s=0.0,
        windows=[],
        rates={"step_s": 0.25, "ok": [], "failed": [], "unknown": []},
    )
    assert "<svg" in page(empty)
