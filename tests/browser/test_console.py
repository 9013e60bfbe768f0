"""What a person sees in a real browser: live pages without reload, dialogs, forms, a report as it runs, both themes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import PASSWORD, Console
from tests.support.cluster import eventually
from tests.web.fakes import snapshot_document

pytestmark = pytest.mark.slow

PAGES = (
    "/",
    "/topics/",
    "/topics/new",
    "/topics/orders/",
    "/topics/orders/delete",
    "/topics/orders/messages?group=broker-a&queue_id=1",
    "/groups/",
    "/groups/billing/",
    "/reports/",
    "/reports/throughput/run",
    "/reports/throughput/schedule",
    "/operations/",
    "/audit/",
    "/tokens/",
    "/users/",
    "/users/reading",
    "/account",
)


IS_SHOWN = """([width, scheme]) =>
  innerWidth === width && (scheme === null || matchMedia(`(prefers-color-scheme: ${scheme})`).matches)"""
DRAWN = """() => document.fonts.ready.then(
  () => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => done())))
)"""


class Tab:
    """A page that is logged in; `errors` are what the browser complained about."""

    def __init__(self, console: Console, browser: Any) -> None:
        self.console = console
        self.context = browser.new_context(viewport={"width": 1440, "height": 900})
        self.context.set_default_timeout(15_000)
        self.page = self.context.new_page()
        self.errors: list[str] = []
        self.page.on(
            "console", lambda message: message.type in {"error", "warning"} and self.errors.append(message.text)
        )
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))

    def log_in(self) -> None:
        """Look at the overview as the administrator: with the session of the first tab, as long as there is one."""
        self.context.add_cookies(self.console.cookies)
        self.go("/")
        if self.page.url == f"{self.console.address}/":
            return
        self.page.fill("#username", "admin")
        self.page.fill("#password", PASSWORD)
        self.page.click("text=Log in")
        self.page.wait_for_url(f"{self.console.address}/")
        self.console.cookies = self.context.cookies()

    def go(self, path: str) -> None:
        self.page.goto(self.console.address + path)

    def sees(self, text: str, selector: str = "body") -> None:
        expect(self.page.locator(selector).first).to_contain_text(text, timeout=15_000)

    def lacks(self, text: str, selector: str) -> None:
        expect(self.page.locator(selector).first).not_to_contain_text(text, timeout=15_000)

    def has(self, number: int, selector: str) -> None:
        expect(self.page.locator(selector)).to_have_count(number, timeout=15_000)

    def is_connected(self) -> None:
        self.page.wait_for_selector('#connection[data-state="connected"]')

    def is_drawn(self, width: int, scheme: str | None = None) -> None:
        """Whoever measures the page waits until it has this width, and these colours, and was drawn with them."""
        what = f"the page is {width} wide, {scheme or 'in any colours'}"
        eventually(what, lambda: self.page.evaluate(IS_SHOWN, [width, scheme]), timeout_s=15)
        self.page.evaluate(DRAWN)


@pytest.fixture
def tab(console: Console, browser: Any) -> Iterator[Tab]:
    console.feed(snapshot_document())
    tab = Tab(console, browser)
    tab.log_in()
    yield tab
    tab.context.close()
    assert tab.errors == []


def test_every_page_obeys_the_policy_in_both_themes_on_wide_and_narrow_screens(tab: Tab, console: Console) -> None:
    for path in PAGES:
        console.feed(snapshot_document())
        tab.go(path)
        tab.is_connected()
        tab.has(1, "h1")
        for scheme, width in (("light", 1440), ("dark", 1440), ("dark", 390), ("light", 390), ("light", 1440)):
            tab.page.emulate_media(color_scheme=scheme)
            tab.page.set_viewport_size({"width": width, "height": 900})
            tab.is_drawn(width, scheme)
            overflow = tab.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{path} scrolls sideways, {scheme}, {width} wide"


def test_on_a_small_desk_a_topic_shows_all_columns_of_its_tables(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 1280, "height": 900})
    tab.go("/topics/orders/")
    tab.is_connected()
    tab.is_drawn(1280)
    tables = tab.page.locator("main .scroll").evaluate_all("each => each.map(e => [e.scrollWidth, e.clientWidth])")
    assert len(tables) >= 2
    assert [wide for wide, shown in tables if wide > shown + 1] == []


def test_a_narrow_screen_has_the_navigation(tab: Tab) -> None:
    tab.page.set_viewport_size({"width": 390, "height": 844})
    tab.page.click("[data-toggle=nav]")
    tab.page.click("nav >> text=Topics")
    tab.page.wait_for_url("**/topics/")


def test_an_election_shows_without_reload(tab: Tab, console: Console) -> None:
    tab.is_connected()
    tab.page.evaluate("window.notReloaded = true")
    document = snapshot_document()
    group = document["groups"][0]
    group.update(master_id=2, master_epoch=4, sync_state_set=[2, 3], sync_state_set_epoch=6)
    group["replicas"][0].update(role="unreachable", in_sync=False, alive=False, max_offset=None)
    group["replicas"][1].update(role="master", epoch=4)
    reason = {"code": "replica-dead", "severity": "warning", "text": "broker-a: replica 1 is dead", "link": None}
    document["verdict"] = {"status": "degraded", "reasons": [reason]}
    console.feed(document)
    tab.sees("replica 1 is dead", ".verdict")
    tab.sees("{ 2, 3 }", "#group-DefaultCluster-broker-a")
    tab.sees("master", '[data-key="replica-broker-a-2"]')
    tab.sees("unreachable", '[data-key="replica-broker-a-1"]')
    tab.sees("degraded", "#verdict-pill")
    assert tab.page.evaluate("window.notReloaded")


def test_a_downgrade_says_who_is_missing_why_and_since_when_and_goes_by_itself(tab: Tab, console: Console) -> None:
    tab.is_connected()
    group_card = "#group-DefaultCluster-broker-a"
    document = snapshot_document()
    group = document["groups"][0]
    group.update(sync_state_set=[1, 2], weaknesses=["ack_after=append: an acknowledgement means memory"])
    group["quorum"].update(copies=2, downgraded=True)
    group["quorum"]["missing"] = [
        {"broker_id": 3, "reason": "it is not connected", "stalls": False, "since_ms": 1_790_000_000_000}
    ]
    group["replicas"][2].update(in_sync=False, learner=False)
    console.feed(document)
    tab.sees("2 of 3 copies", group_card)
    tab.sees("replica 3: it is not connected", group_card)
    tab.sees("weak settings", group_card)
    group["quorum"].update(copies=1, refused=True, min_copies=2)
    group["replicas"][2].update(learner=True)
    console.feed(document)
    tab.sees("refuses messages", group_card)
    tab.sees("learner", '[data-key="replica-broker-a-3"]')
    console.feed(snapshot_document())
    tab.has(0, f"{group_card} .missing")
    tab.has(0, f"{group_card} .badge")


def test_updates_keep_focus_and_what_was_opened(tab: Tab, console: Console) -> None:
    tab.is_connected()
    tab.page.focus('[data-key="replica-broker-a-2"] a')
    for rate in (10, 20, 30):
        document = snapshot_document()
        document["rates"]["in_messages_per_s"] = rate
        console.feed(document)
        tab.sees(f"{rate}", '[data-key="in"]')
    assert tab.page.evaluate("document.activeElement.textContent").strip() == "Elect master"


def test_filters_go_on_while_the_list_is_live(tab: Tab, console: Console) -> None:
    tab.go("/topics/")
    tab.is_connected()
    tab.page.fill("#q", "RETRY")
    tab.lacks("orders", "#live")
    assert "q=RETRY" in tab.page.url
    document = snapshot_document()
    document["topics"][1]["message_count"] = 4321
    console.feed(document)
    tab.sees("4\u202f321", "#live")
    assert "orders" not in tab.page.inner_text("#live")


def test_back_takes_list_and_address_together(tab: Tab, console: Console) -> None:
    tab.go("/topics/")
    tab.is_connected()
    with tab.page.expect_websocket() as socket:
        tab.page.fill("#q", "RETRY")
    socket.value.wait_for_event("framereceived")  # the browser complains of one that is closed while it opens
    tab.lacks("orders", "#live")
    with tab.page.expect_websocket() as socket:
        tab.page.check("#system")
    socket.value.wait_for_event("framereceived")
    tab.page.wait_for_url("**system=on*")
    for address, typed, ticked, orders in (("/topics/?q=RETRY", "RETRY", False, False), ("/topics/", "", False, True)):
        tab.page.go_back()
        tab.page.wait_for_url(console.address + address)
        tab.is_connected()
        console.feed(snapshot_document())
        if orders:
            tab.sees("orders", "#live")
        else:
            tab.lacks("orders", "#live")
        expect(tab.page.locator("#q")).to_have_value(typed)
        assert tab.page.is_checked("#system") is ticked
        assert (tab.page.get_attribute("#live", "data-query") or "") == address.partition("?")[2]


def test_back_takes_the_choice_of_a_queue_along(tab: Tab) -> None:
    tab.go("/topics/orders/messages")
    tab.sees("broker-a · queue 1", "main")
    tab.page.select_option("#queue", "broker-a/2")
    tab.sees("broker-a · queue 2", "main")
    assert tab.page.url.endswith("/topics/orders/messages?count=20&group=broker-a&queue_id=2")
    tab.page.select_option("#queue", "broker-a/3")
    tab.sees("broker-a · queue 3", "main")
    for queue_id in (2, 1):
        tab.page.go_back()
        tab.sees(f"broker-a · queue {queue_id}", "main")
        expect(tab.page.locator("#queue")).to_have_value(f"broker-a/{queue_id}")


def test_a_queue_is_chosen_and_a_message_sent_without_javascript(console: Console, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = Tab(console, browser)
    tab.context.close()
    tab.context, tab.page = context, context.new_page()
    tab.log_in()
    tab.go("/topics/orders/messages")
    tab.page.select_option("#queue", "broker-a/3")
    tab.page.click("main >> button:has-text('Show')")
    tab.sees("broker-a · queue 3", "main")
    tab.go("/topics/orders/")
    tab.page.click("text=Send a test message")
    tab.page.fill("#body", "by hand")
    tab.page.click("#send >> button:has-text('Send')")
    tab.page.wait_for_url("**/operations/**")
    tab.page.reload()
    tab.page.click("text=Look at the message")
    tab.sees("by hand", "main")
    context.close()


def test_a_reload_makes_no_second_token(tab: Tab, console: Console) -> None:
    tab.go("/tokens/")
    before = tab.page.locator("tbody td.scopes .mono").count()
    tab.page.fill("#name", "once")
    tab.page.click("text=Make token")
    tab.page.wait_for_selector("#secret-1")
    tab.page.reload()
    tab.has(0, "#secret-1")
    tab.has(before + 1, "tbody td.scopes .mono")


def test_neither_database_nor_redis_ever_holds_what_a_new_token_reads(tab: Tab, console: Console) -> None:
    tab.go("/tokens/")
    tab.page.fill("#name", "by the browser")
    tab.page.click("text=Make token")
    text = tab.page.inner_text("#secret-1").strip()
    assert text.startswith("lb_")
    kept = console.everything_kept()
    assert b"by the browser" in kept, "what it is for"
    assert text.split("_", 2)[2].encode() not in kept


def test_electing_asks_shows_why_and_follows_the_outcome(tab: Tab, console: Console) -> None:
    tab.page.click('[data-key="replica-broker-a-2"] >> text=Elect master')
    tab.sees("No acknowledged message is lost", "#dialog-place dialog")
    tab.sees("not in the sync-state set", "#dialog-place dialog")
    tab.page.click("#dialog-place dialog >> text=Make replica 2 the master")
    tab.sees("queued", "#dialog-place dialog")
    identifier = tab.page.get_attribute("[data-operation-socket]", "data-operation-socket")
    console.django(f"from webapp.operations import progress; progress.start('{identifier}')")
    tab.sees("running", "#dialog-place dialog")
    console.django(
        f"from webapp.operations import progress as p; p.node('{identifier}', 'replica 2', 'CONFIRMED', 'epoch 4'); "
        f"p.succeed('{identifier}')"
    )
    tab.sees("succeeded", "#dialog-place dialog")
    tab.sees("epoch 4", "#dialog-place dialog")
    tab.page.click("#dialog-place dialog >> text=Done")
    assert tab.page.locator("dialog[open]").count() == 0


def test_a_topic_is_created_and_deleted_by_hand(tab: Tab, console: Console) -> None:
    tab.go("/topics/new")
    tab.page.fill("#name", "a b")
    tab.page.click("main >> text=Create")
    tab.sees("letters, digits", ".field")
    tab.page.fill("#name", "payments")
    tab.page.click("main >> button:has-text('Create')")
    tab.sees("payments", "h1")
    tab.sees("queued", ".operation")
    tab.go("/topics/orders/delete")
    button = tab.page.locator("text=Delete the topic")
    assert button.is_disabled()
    tab.page.fill("#confirmation", "orders")
    assert button.is_enabled()
    button.click()
    tab.sees("Delete topic", "h1")


def test_messages_are_browsed_unfolded_and_sent(tab: Tab) -> None:
    tab.go("/topics/orders/messages?group=broker-a&queue_id=1")
    tab.page.click("td.number >> text='40'")
    tab.sees('"order": 1040', ".unfolded .tabs")
    tab.page.click(".unfolded label:has-text('Hex')")
    tab.sees("00000000  7b 22", ".unfolded pre:visible")
    tab.page.click("td.number >> text='40'")
    tab.has(0, ".unfolded .tabs")
    tab.page.click("text=Older")
    tab.sees("order-10", "main")
    tab.go("/topics/orders/")
    tab.page.click("text=Send a test message")
    tab.page.fill("#body", '{"hello": "logboom"}')
    tab.page.click("#send >> button:has-text('Send')")
    tab.sees("Stored in broker-a, queue 0, offset", "#send")
    tab.page.click("text=Look at it")
    tab.sees('"hello": "logboom"', ".tabs")


def test_the_schedule_form_previews_while_typing(tab: Tab) -> None:
    tab.go("/reports/throughput/schedule")
    tab.page.fill("#cron", "*/15 9-17 * * 1-5")
    tab.sees("Every 15 minutes", "#cron-preview")
    tab.has(5, "#cron-preview li")
    tab.page.fill("#cron", "61 * * * *")
    tab.sees("minute cannot be read", "#cron-preview")
    tab.page.fill("#cron", "30 6 * * *")
    name = "by_the_browser_" + "x" * 75
    tab.page.fill("#name", name)
    tab.page.select_option("#catch_up", "all")
    tab.page.click("main >> text=Save")
    tab.sees(name, "main")
    tab.sees("At 06:30", "main")
    tab.sees("If missed: run all, at most the latest 10", "main")
    tab.page.set_viewport_size({"width": 390, "height": 844})
    assert tab.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    tab.page.select_option("#state", "skipped")
    tab.sees("No such run.", "#runs")


REPORT = """
import json, sys
from webapp.reports import stream
from webapp.reports.models import ReportRun
from webapp.reports.catalogue import Row
def row(minute, messages, topic="orders"):
    at = f"2026-01-01T00:{minute:02}:00Z"
    data = {"topic": topic, "group": "broker-a", "queue_id": 0, "minute": at, "messages": messages, "bytes": messages * 100}
    return Row("throughput", f"{topic}|{minute}", data)
"""


@pytest.fixture
def run_id(console: Console) -> str:
    code = 'run = ReportRun.objects.create(report="throughput", parameters={})\nstream.starting(run.pk)\nprint(run.pk)'
    return console.django(REPORT + code).strip()


def test_a_report_is_seen_as_it_runs_also_by_who_comes_late(
    tab: Tab, console: Console, browser: Any, run_id: str
) -> None:
    tab.go(f"/reports/runs/{run_id}/")
    tab.sees("Starting Spark", "#run-progress")
    progress = {"stages": [{"id": 1, "name": "Read orders", "done": 3, "total": 8, "running": True}]}
    progress.update(rows_read=1500, rows_total=6000, text="Reading orders")
    console.django(
        REPORT
        + f"stream.running('{run_id}'); stream.publish('{run_id}', [row(m, m + 1) for m in range(5)], {progress!r})"
    )
    tab.sees("3 of 8 tasks, running", "#run-progress")
    tab.sees("1\u202f500 of 6\u202f000", "#run-progress")
    tab.sees("Reading orders", "#run-text")
    tab.sees("5 rows so far", '[data-section="throughput"]')
    tab.page.wait_for_selector('[data-section="throughput"] canvas')

    late = Tab(console, browser)
    late.log_in()
    late.go(f"/reports/runs/{run_id}/")
    late.sees("5 rows so far", '[data-section="throughput"]')
    console.django(REPORT + f"stream.publish('{run_id}', [row(4, 77), row(5, 6)])")
    for viewer in (tab, late):
        viewer.sees("6 rows so far", '[data-section="throughput"]')
        viewer.sees("77", '[data-section="throughput"] [data-rows]')
    console.django(REPORT + f"stream.succeeded('{run_id}', [row(m, 1000 + m) for m in range(6)])")
    for viewer in (tab, late):
        viewer.sees("succeeded", "#run-state")
        viewer.sees("1\u202f005", '[data-section="throughput"] [data-rows]')
        viewer.page.wait_for_selector('[data-section="throughput"] canvas')
    with tab.page.expect_download() as download:
        tab.page.click('[data-section="throughput"] >> text=CSV')
    content = download.value.path().read_text()
    assert content.splitlines()[0] == "topic,group,queue_id,minute,messages,bytes"
    assert len(content.splitlines()) == 7
    late.context.close()
    assert late.errors == []


def test_a_failed_report_says_why(tab: Tab, console: Console, run_id: str) -> None:
    tab.go(f"/reports/runs/{run_id}/")
    console.django(REPORT + f"stream.failed('{run_id}', 'Spark ran out of memory; lower the number of minutes.')")
    tab.sees("lower the number of minutes", ".run-head")


def test_the_palette_goes_anywhere(tab: Tab) -> None:
    tab.page.keyboard.press("Control+k")
    tab.page.keyboard.type("bill")
    tab.sees("billing", "#palette-found")
    tab.has(2, "#palette-found a")
    tab.page.click("#palette-found a:has-text('consumer group')")
    tab.page.wait_for_url("**/groups/billing/")


def test_a_stopped_collector_and_a_lost_connection_show(console: Console, browser: Any) -> None:
    console.feed(snapshot_document())
    tab = Tab(console, browser)
    tab.log_in()
    tab.is_connected()
    console.feed(snapshot_document(as_of="2026-01-01T00:00:00.000Z", pinned=True))
    tab.page.wait_for_selector('#connection[data-state="stale"]')
    tab.sees("has not reported for", ".verdict")
    console.stop_web()
    tab.page.wait_for_selector('#connection[data-state="reconnecting"]')
    console.start_web()
    console.feed(snapshot_document())
    tab.is_connected()
    tab.context.close()


def test_logging_out_elsewhere_ends_this_page_too(tab: Tab) -> None:
    second = tab.context.new_page()
    second.goto(tab.console.address + "/topics/")
    tab.is_connected()
    second.click("[aria-label='Log out']")
    tab.page.wait_for_url(re.compile(r"/login\?next="))


def test_the_theme_is_kept(tab: Tab) -> None:
    background: Callable[[], str] = lambda: tab.page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    light = background()
    tab.page.click("[aria-label='Colours: system']")
    tab.page.click("[aria-label='Colours: light']")
    tab.page.wait_for_selector("html[data-theme=dark]")
    assert background() != light
    tab.go("/topics/")
    assert tab.page.get_attribute("html", "data-theme") == "dark"


def test_the_api_answers_the_browser_session_but_changes_need_the_csrf_token(tab: Tab) -> None:
    answer = tab.page.evaluate("fetch('/api/v1/cluster').then(answer => answer.json())")
    assert answer["freshness"] == "fresh"
    send = "fetch('/api/v1/topics', {method: 'POST', body: '{}', headers: {'Content-Type': 'application/json'}})"
    refused = tab.page.evaluate(f"{send}.then(answer => answer.json())")
    assert refused["status"] == 403
    assert "CSRF" in refused["detail"]
    assert [error for error in tab.errors if "403" not in error] == []
    tab.errors.clear()
