"""Where queued runs stand: told by their rows, and so on the page, in the list and over REST."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from webapp.reports import line, stream
from webapp.reports.line import Line
from webapp.reports.models import ReportRun, ReportSchedule

NAME = "n" * 90


@pytest.mark.parametrize(
    ("waiting", "at_work", "at_once", "told"),
    [
        (["A"], [], 3, "1st in line; a worker takes it within a moment"),
        (["A"], ["X", "Y", "Z"], 3, "1st in line, because 3 reports run at once: now X, Y and Z"),
        (["A", "B"], ["X"], 1, "2nd in line, behind A, because one report runs at once: now X"),
        (["A", "B", "C"], ["X", "Y"], 2, "3rd in line, behind A and B, because 2 reports run at once: now X and Y"),
        (
            list("ABCDEFGHIJK"),
            ["X"],
            1,
            "11th in line, behind A, B, C and 7 more, because one report runs at once: now X",
        ),
        (["A", "B"], [], 1, "2nd in line, behind A, because one report runs at once"),
    ],
)
def test_the_sentence(waiting: list[str], at_work: list[str], at_once: int, told: str) -> None:
    assert Line(waiting, at_work, at_once).place(len(waiting) - 1)["text"] == told


def queued(name: str, **fields: Any) -> ReportRun:
    return ReportRun.objects.create(report="throughput", requested_by_name=name, progress=line.JUST_QUEUED, **fields)


def text(run: ReportRun) -> str:
    run.refresh_from_db()
    return str(run.progress["text"])


@pytest.mark.django_db
def test_places_move_up_as_runs_start_and_end(settings: Any, django_capture_on_commit_callbacks: Any) -> None:
    settings.REPORTS_AT_ONCE = 1
    first, second, third = queued("ann"), queued(NAME), queued("cay")
    line.tell_places()
    assert text(first) == "1st in line; a worker takes it within a moment"
    with django_capture_on_commit_callbacks(execute=True):
        stream.starting(first.pk)
    assert text(first) == "a worker took it"
    expected = f"2nd in line, behind Throughput ({NAME}), because one report runs at once: now Throughput (ann)"
    assert text(third) == expected
    assert third.progress["queue"] == {
        "place": 2,
        "ahead": [f"Throughput ({NAME})"],
        "at_work": ["Throughput (ann)"],
        "at_once": 1,
    }
    seq = third.last_seq
    line.tell_places()
    third.refresh_from_db()
    assert third.last_seq == seq, "what is not new is not told"
    with django_capture_on_commit_callbacks(execute=True):
        stream.request_cancel(second.pk)
    assert text(second) == "cancelled before it started"
    assert text(third) == "1st in line, because one report runs at once: now Throughput (ann)"
    with django_capture_on_commit_callbacks(execute=True):
        stream.failed(first.pk, "it failed")
    assert text(third) == "1st in line; a worker takes it within a moment"


@pytest.mark.django_db
def test_a_run_that_follows_its_own_schedules_takes_no_place(settings: Any) -> None:
    settings.REPORTS_AT_ONCE = 1
    made = ReportSchedule.objects.create(name=NAME, report="throughput", cron="0 * * * *", overlap="queue")
    going = queued("schedule", schedule=made)
    stream.starting(going.pk)
    following, other = queued("schedule", schedule=made, tick=timezone.now()), queued("ann")
    line.tell_places()
    assert text(following) == f"waits for the run before it of the schedule {NAME}, as the schedule says"
    assert text(other).startswith("1st in line, because one report runs at once")


@pytest.mark.django_db
def test_page_list_and_rest_show_the_place(settings: Any, operator: Client) -> None:
    settings.REPORTS_AT_ONCE = 1
    stream.starting(queued("ann").pk)
    waiting = queued("bob")
    line.tell_places()
    told = "1st in line, because one report runs at once: now Throughput (ann)"
    for address in (f"/reports/runs/{waiting.pk}/", "/reports/"):
        assert told in operator.get(address).content.decode(), address
    answer = operator.get(f"/api/v1/report-runs/{waiting.pk}").json()
    assert (answer["progress"]["text"], answer["progress"]["queue"]["place"]) == (told, 1)
