"""What a page shows that no longer hears the truth: grey with its age, a sentence for each request that fails, and back again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Route, expect

from tests.browser.conftest import Console, wait_until
from tests.browser.test_console import REPORT, Tab
from tests.web.fakes import snapshot_document

pytestmark = pytest.mark.slow

BAR = "#out-of-date"
CORNER = "#failures .notice"
WAIT_MS = 20_000
TONES = {"good": "--good", "grey": "--calm"}


class Watched(Tab):
    """A page that is watched while the console is away; what the browser says about that is no error."""

    def has_tone(self, tone: str) -> None:
        """The verdict, in the bar and on the overview, has this colour."""
        wanted = f"getComputedStyle(document.documentElement).getPropertyValue('{TONES[tone]}').trim()"
        own = "getComputedStyle(each).getPropertyValue('--tone').trim()"
        same = f"[...document.querySelectorAll('.verdict-pill, .verdict')].every((each) => {own} === {wanted})"
        wait_until(lambda: bool(self.page.evaluate(same)), f"the verdict is {tone}", 15)

    def is_told_that_it_is_old(self, words: str) -> int:
        """The bar says so; gives back the age that it names, in seconds."""
        expect(self.page.locator(BAR)).to_contain_text(re.compile(rf"{words}; as of \d+ s ago"), timeout=WAIT_MS)
        found = re.search(r"as of (\d+) s ago", self.page.inner_text(BAR))
        assert found is not None
        return int(found[1])

    def grows_older(self, words: str, than_s: int) -> None:
        """The age is counted on."""
        wait_until(lambda: self.is_told_that_it_is_old(words) > than_s, "the age grows", 15)

    def is_current(self) -> None:
        self.is_connected()
        expect(self.page.locator(BAR)).to_be_hidden(timeout=WAIT_MS)
        self.has_tone("good")


@pytest.fixture
def watched(console: Console, browser: Any) -> Iterator[Watched]:
    console.feed(snapshot_document())
    tab = Watched(console, browser)
    tab.log_in()
    tab.is_current()
    yield tab
    tab.context.close()


@pytest.fixture
def stopped(watched: Watched, console: Console) -> Iterator[Watched]:
    """A page whose console was stopped; it runs again after the test."""
    console.stop_web()
    try:
        yield watched
    finally:
        if not console.is_up:
            console.start_web()


def test_a_killed_console_turns_the_verdict_grey_with_its_age_until_it_is_back(
    stopped: Watched, console: Console
) -> None:
    age_s = stopped.is_told_that_it_is_old("Connection lost")
    stopped.has_tone("grey")
    stopped.sees("connection lost", "#connection")
    stopped.grows_older("Connection lost", age_s)
    assert stopped.page.get_attribute("#verdict-pill", "data-as-of").startswith("as of ")
    assert stopped.page.get_attribute("#connection", "role") == "status", "it is read out, once: the age is elsewhere"
    stopped.page.set_viewport_size({"width": 390, "height": 844})
    assert stopped.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    expect(stopped.page.locator(BAR)).to_be_visible()
    console.start_web()
    stopped.is_current()
    assert stopped.page.get_attribute("#verdict-pill", "data-as-of") is None


def test_a_connection_that_nobody_closed_and_that_says_nothing_is_lost(watched: Watched, console: Console) -> None:
    console.freeze_web()
    try:
        assert watched.is_told_that_it_is_old("Connection lost") >= 9
        watched.has_tone("grey")
    finally:
        console.thaw_web()
    watched.is_current()


def test_a_silent_collector_turns_the_verdict_grey_with_its_age(watched: Watched, console: Console) -> None:
    document = snapshot_document()
    console.feed({**document, "pinned": True})
    age_s = watched.is_told_that_it_is_old("The collector has not reported")
    assert age_s >= 5
    watched.has_tone("grey")
    watched.grows_older("The collector has not reported", age_s)
    watched.go("/topics/")
    watched.is_told_that_it_is_old("The collector has not reported")
    console.feed(snapshot_document())
    watched.is_current()


def test_a_page_without_javascript_says_that_it_is_old(console: Console, browser: Any) -> None:
    context = browser.new_context(java_script_enabled=False)
    tab = Watched(console, browser)
    tab.context.close()
    tab.context, tab.page = context, context.new_page()
    console.feed(snapshot_document(as_of="2026-01-01T00:00:00.000Z", pinned=True))
    tab.log_in()

    def says_that_it_is_old() -> bool:
        tab.go("/")  # the console may hear of the snapshot after it made the page, which nothing but a reload changes
        return "The collector has not reported; as of" in (tab.page.text_content(BAR) or "")

    wait_until(says_that_it_is_old, "the page says that it is old")
    context.close()


def test_a_click_without_a_console_says_so_and_works_again_afterwards(stopped: Watched, console: Console) -> None:
    button = stopped.page.locator('[data-key="replica-broker-a-2"] >> text=Elect master')
    button.click()
    stopped.sees("The console does not answer. Try again", CORNER)
    assert stopped.page.get_attribute(CORNER, "role") == "alert"
    console.start_web()
    stopped.is_current()
    button.click()
    stopped.sees("No acknowledged message is lost", "#dialog-place dialog")
    stopped.has(0, CORNER)


def test_a_form_that_was_not_answered_says_so_beside_it_and_keeps_what_was_typed(
    watched: Watched, console: Console
) -> None:
    watched.go("/topics/orders/")
    watched.is_connected()
    watched.page.click("text=Send a test message")
    watched.page.fill("#body", "is it there?")
    console.stop_web()
    try:
        watched.page.click("#send >> button:has-text('Send')")
        watched.sees("nobody knows whether this was done", "#send .failure")
        expect(watched.page.locator("#body")).to_have_value("is it there?")
    finally:
        console.start_web()
    watched.is_connected()
    watched.page.click("#send >> button:has-text('Send')")
    watched.sees("Stored in broker-a", "#send")
    watched.has(0, ".failure")


REFUSALS = {
    500: ({"X-Request-Id": "0123abcd"}, "<p>oops</p>", "the console's log has the details under 0123abcd"),
    502: ({}, "<h1>Bad gateway</h1>", "The console is not there at the moment (502)"),
    429: ({"Retry-After": "7"}, "", "asked too often. Try again in 7 s"),
    404: ({}, "", "The console refused this (404). Reload the page"),
}


@pytest.mark.parametrize("status", REFUSALS)
def test_each_refusal_is_a_sentence_with_what_to_do(watched: Watched, status: int) -> None:
    headers, body, sentence = REFUSALS[status]

    def refuse(route: Route) -> None:
        route.fulfill(status=status, headers=headers, body=body, content_type="text/html")

    watched.page.route("**/elections/new?*", refuse)
    watched.page.click('[data-key="replica-broker-a-2"] >> text=Elect master')
    watched.sees(sentence, CORNER)
    watched.page.click(f"{CORNER} >> [aria-label='Close this message']")
    watched.has(0, CORNER)


def test_a_form_of_a_session_that_ended_is_refused_with_the_reason(watched: Watched) -> None:
    watched.page.click('[data-key="replica-broker-a-2"] >> text=Elect master')
    watched.sees("No acknowledged message is lost", "#dialog-place dialog")
    watched.context.clear_cookies(name="logboom_csrf")
    watched.page.click("#dialog-place dialog >> text=Make replica 2 the master")
    watched.sees("it is too old. Go back, reload the page", "#dialog-place dialog .failure")


def test_a_list_that_asks_by_itself_says_once_that_it_gets_no_answer(watched: Watched, console: Console) -> None:
    watched.go("/operations/")
    watched.is_connected()
    console.stop_web()
    try:
        watched.sees("The console does not answer", ".failure")
        watched.sees("This list asks again by itself", ".failure")
        watched.page.evaluate("document.querySelector('.failure').dataset.same = 'yes'")
        watched.page.wait_for_event("requestfailed", lambda request: "/operations/" in request.url)
        watched.has(1, ".failure[data-same]")
    finally:
        console.start_web()
    watched.has(0, ".failure")


def test_the_results_of_a_report_come_when_the_console_gives_them(watched: Watched, console: Console) -> None:
    code = 'run = ReportRun.objects.create(report="throughput", parameters={})\nstream.starting(run.pk)\nprint(run.pk)'
    run_id = console.django(REPORT + code).strip()
    watched.go(f"/reports/runs/{run_id}/")
    watched.is_connected()
    answers: Iterator[int] = iter((503,))

    def refuse_once(route: Route) -> None:
        if status := next(answers, 0):
            route.fulfill(status=status, body="")
        else:
            route.continue_()

    watched.page.route(f"**/reports/runs/{run_id}/", refuse_once)
    console.django(REPORT + f"stream.running('{run_id}'); stream.succeeded('{run_id}', [row(1, 1005)])")
    watched.sees("its results are not here yet", CORNER)
    watched.sees("succeeded", "#run-state")
    watched.sees("1\u202f005", '[data-section="throughput"] [data-rows]')
    watched.has(0, CORNER)
