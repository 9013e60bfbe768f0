"""Timers as people see them in a browser: who may only look, a recall as it goes on and when it is stopped, the life of a
message, and the report on how late timers came."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from remoting.names import TIMER_TOPIC
from tests.browser.cluster import LATER
from tests.browser.conftest import PASSWORD, Console
from tests.browser.test_console import Tab
from tests.browser.test_every_page import SIDEWAYS
from tests.web.fakes import snapshot_document

pytestmark = pytest.mark.slow

WIDTHS = (400, 1280)
BODY = "remind"  # is in every message of the topic

VIEWER = f"""
from webapp.accounts.models import User
from webapp.accounts.permissions import set_role
user, made = User.objects.get_or_create(username="onlooker")
if made:
    user.set_password("{PASSWORD}")
    user.save()
    set_role(user, "viewer")
"""

RECALL = """
from webapp.lifecycle import State
from webapp.operations import progress
from webapp.operations.models import Operation
"""

REPORT = """
from webapp.reports import stream
from webapp.reports.catalogue import Row
from webapp.reports.models import ReportRun
late = {"p50_ms": 2, "p95_ms": 9, "p99_ms": 14, "max_ms": 61}
others = {"rolled": 3, "recalled": 2, "overdue": 1, "early": 0, "duplicates": 0}
def hour(topic, number, p99_ms):
    data = {"topic": topic, "hour": f"2026-03-01T{number:02}:00:00Z", "delivered": 120 + number, **late, **others}
    return Row("hours", f"{topic}|{number}", {**data, "p99_ms": p99_ms})
def rows():
    found = [hour(topic, n, 10 + n * (1 + n % 3) + len(topic)) for topic in ("later", "orders") for n in range(8)]
    whole = {"overdue_since": "2026-03-01T06:10:00Z", "pending": 12, "next_due": "2026-03-02T00:00:00Z"}
    found.append(Row("topics", "later", {"topic": "later", "delivered": 984, **late, **others, **whole, "order": 0}))
    spread = (("2 ms", 900, 0.9), ("10 ms", 70, 0.97), ("more", 30, 1.0))
    found += [
        Row("lateness", text, {"late": text, "delivered": count, "share": count / 1000, "up_to_here": part, "order": number})
        for number, (text, count, part) in enumerate(spread)
    ]
    of_group = {"waiting": 12, "aside": 1, "overdue_ms": 61000, "delivered": 984, "rolled": 3, "recalled": 2, "lost": 0}
    found.append(Row("groups", "broker-a", {"group": "broker-a", **of_group}))
    return found
"""


@pytest.fixture
def viewer(console: Console, browser: Any) -> Iterator[Tab]:
    """A tab of somebody who may look, and read no message."""
    console.feed(snapshot_document())
    console.django(VIEWER)
    tab = Tab(console, browser)
    tab.go("/login")
    tab.page.fill("#username", "onlooker")
    tab.page.fill("#password", PASSWORD)
    tab.page.click("text=Log in")
    tab.page.wait_for_url(f"{console.address}/")
    yield tab
    tab.context.close()
    assert [error for error in tab.errors if "403" not in error] == []


@pytest.fixture
def tab(console: Console, browser: Any) -> Iterator[Tab]:
    console.feed(snapshot_document())
    tab = Tab(console, browser)
    tab.log_in()
    yield tab
    tab.context.close()
    assert tab.errors == []


def fits(tab: Tab) -> None:
    """Nothing of the page is beside the screen."""
    for width in WIDTHS:
        tab.page.set_viewport_size({"width": width, "height": 900})
        tab.is_drawn(width)
        overflow, wide = tab.page.evaluate(SIDEWAYS)
        assert overflow <= 0, (tab.page.url, width, wide)


def test_who_may_only_look_reads_no_message_and_recalls_none(viewer: Tab) -> None:
    viewer.go("/timers/")
    viewer.is_connected()
    viewer.sees("Horizon")
    fits(viewer)
    viewer.go(f"/timers/?topic={LATER}")
    viewer.has(0, "main >> text=Recall all")
    viewer.go(f"/timers/find?topic={LATER}")
    viewer.sees("REMIND79")
    viewer.has(0, "main >> text=/^Recall/")
    fits(viewer)
    viewer.page.click("main >> text=REMIND79")
    viewer.sees("Its life as a timer")
    viewer.sees("hidden: you may not read messages")
    viewer.lacks(BODY, "main")
    viewer.has(0, "main .tabs")
    fits(viewer)
    viewer.go(f"/timers/recall?topic={LATER}")
    viewer.has(0, "main form")
    fits(viewer)


def test_the_life_of_a_message_says_how_it_waited_and_how_late_it_came(tab: Tab) -> None:
    tab.go(f"/topics/{LATER}/messages/broker-a/1/0")
    for text in ("received", "appended again (1)", "delivered", "7\u202fms late"):
        tab.sees(text, ".life")
    tab.sees(BODY, ".message")
    fits(tab)
    tab.page.click(f".life >> text={TIMER_TOPIC} >> nth=1")
    tab.sees("delivered", ".life")
    fits(tab)
    tab.go(f"/topics/{TIMER_TOPIC}/messages/broker-a/0/1")
    tab.sees("by ann", ".life")
    tab.sees("never delivered", ".life")
    fits(tab)
    tab.go(f"/topics/{TIMER_TOPIC}/messages/broker-a/0/4")
    tab.sees("waiting", ".life")
    fits(tab)


def test_the_dialog_of_a_recall_fits(tab: Tab) -> None:
    tab.go(f"/timers/?topic={LATER}")
    tab.page.click("text=Recall all of the topic")
    tab.sees("What is recalled is never delivered", "#dialog-place dialog")
    tab.sees("recalls", "#dialog-place .plan")
    fits(tab)


def test_a_recall_is_seen_as_it_goes_on_and_what_it_made_until_somebody_stopped_it(tab: Tab, console: Console) -> None:
    made = console.django(
        RECALL
        + f"""
operation = Operation.objects.create(kind="timer.recall", target="{LATER}", requested_by_name="ann",
    parameters={{"topic": "{LATER}", "chosen": "{LATER}", "rate": 500, "recalled_by": "ann", "expected": 12000}})
progress.start(operation.pk)
progress.report(operation.pk, done=4500, total=12000, text="4499 recalled, 1 delivered before")
print(operation.pk)
"""
    ).strip()
    tab.go(f"/operations/{made}/")
    tab.sees("4499 recalled, 1 delivered before", ".operation")
    assert tab.page.locator(".operation progress").get_attribute("value") == "4500"
    fits(tab)
    console.django(f"{RECALL}progress.report('{made}', done=6000, total=12000, text='5999 recalled')")
    tab.sees("5999 recalled", ".operation")
    tab.page.click("main >> button:has-text('Stop')")
    tab.sees("A stop was asked for", ".operation")
    assert tab.page.locator("main >> button:has-text('Stopping')").is_disabled()
    fits(tab)
    result = {"outcomes": {"recalled": 6499, "delivered": 1}, "sentence": "Stopped: 6499 recalled, 1 delivered before."}
    console.django(f"{RECALL}progress.cancelled('{made}', {result!r})")
    tab.sees("cancelled", ".operation")
    tab.sees("6499 recalled", ".operation")
    tab.has(0, "main >> button")
    fits(tab)


def test_the_report_on_how_late_timers_came(tab: Tab, console: Console) -> None:
    run_id = console.django(
        REPORT
        + """
run = ReportRun.objects.create(report="timers", parameters={})
stream.starting(run.pk)
stream.running(run.pk)
print(run.pk)
"""
    ).strip()
    tab.go(f"/reports/runs/{run_id}/")
    console.django(f"{REPORT}stream.publish('{run_id}', rows()[:9])")
    tab.sees("rows so far", '[data-section="hours"]')
    console.django(f"{REPORT}stream.succeeded('{run_id}', rows())")
    tab.sees("succeeded", "#run-state")
    tab.page.wait_for_selector('[data-section="hours"] canvas')
    tab.sees("984", '[data-section="topics"]')
    fits(tab)
