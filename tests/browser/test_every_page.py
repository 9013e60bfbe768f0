"""What holds of every page, form and dialog, whatever the data look like: nothing scrolls sideways, nothing is cut, everything
has a name for who cannot see it, and all moments have one form.

Each page is opened once, with `untidy` data, as a phone shows it, and looked at then at the widths of a phone, of a tablet and
of a small desk.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.browser.cluster import CLIENT_USER
from tests.browser.conftest import PASSWORD, Console
from tests.browser.test_console import Tab
from tests.browser.untidy import BROKERS, CLUSTER, GROUP, TOPIC, USER, untidy_document
from tests.support.cluster import eventually

pytestmark = pytest.mark.slow

HEIGHT = 900
PHONES, TABLET, DESK = (360, 390), 768, 1280
WIDTHS = (*PHONES, TABLET, DESK)
ZONE = "Asia/Kolkata"

_ELECTION = urlencode({"cluster": CLUSTER, "group": BROKERS, "broker_id": 2})
PLACES = (
    "/",
    f"/elections/new?{_ELECTION}",
    "/controllers/add",
    "/controllers/promote?id=n3",
    "/controllers/remove?id=n1",
    "/topics/",
    "/topics/?kind=retry",
    "/topics/?q=without&system=on",
    "/topics/new",
    f"/topics/{TOPIC}/",
    f"/topics/{TOPIC}/edit",
    f"/topics/{TOPIC}/delete",
    f"/topics/{TOPIC}/send",
    f"/topics/{TOPIC}/messages?group=broker-a&queue_id=0&count=5",
    f"/topics/{TOPIC}/messages?group={BROKERS}",
    f"/topics/{TOPIC}/messages/broker-a/0/3",
    "/topics/nope/",
    "/timers/",
    f"/timers/?topic={TOPIC}",
    "/timers/find",
    f"/timers/find?topic={TOPIC}",
    f"/timers/recall?topic={TOPIC}",
    "/groups/",
    "/groups/new",
    f"/groups/{GROUP}/",
    f"/groups/{GROUP}/edit",
    f"/groups/{GROUP}/delete",
    "/reports/",
    "/reports/throughput/run",
    "/reports/throughput/schedule",
    "/reports/schedules/{schedule}/edit",
    "/reports/runs/{finished}/",
    "/reports/runs/{failed}/",
    "/reports/runs/{queued}/",
    "/operations/",
    "/operations/{operation}/",
    "/clients/",
    f"/clients/{CLIENT_USER}/?type=Topic&resource={TOPIC}&action=Pub",
    "/audit/",
    "/audit/verify",
    "/tokens/",
    "/users/",
    "/users/reading",
    "/account",
)


@pytest.fixture(scope="module")
def addresses(console: Console) -> list[str]:
    """Of every page, with something at each."""
    found = json.loads(console.django("from tests.browser.untidy import fill_tables; print(fill_tables())"))
    return [place.format_map(found) if "{" in place else place for place in PLACES]


@contextmanager
def long_named_person(console: Console, browser: Any) -> Iterator[Tab]:
    """A tab of an administrator with a long name and a time zone of half hours."""
    console.feed(untidy_document())
    tab = Tab(console, browser)
    tab.go("/login")
    tab.page.fill("#username", USER)
    tab.page.fill("#password", PASSWORD)
    tab.page.click("text=Log in")
    tab.page.wait_for_url(f"{console.address}/")
    yield tab
    tab.context.close()
    assert [error for error in tab.errors if "404" not in error] == []


@pytest.fixture
def person(console: Console, browser: Any, addresses: list[str]) -> Iterator[Tab]:
    with long_named_person(console, browser) as tab:
        yield tab


@dataclass
class Walk:
    """What was found on the way through all pages: of each rule, where it is broken; and how many moments there were."""

    layout: dict[int, list[Any]] = field(default_factory=lambda: {width: [] for width in WIDTHS})
    names: dict[int, list[Any]] = field(default_factory=lambda: {width: [] for width in WIDTHS})
    cut_tables: dict[str, Any] = field(default_factory=dict)
    moments: list[Any] = field(default_factory=list)
    moments_seen: int = 0
    pages: int = 0


@pytest.fixture(scope="module")
def walk(console: Console, browser: Any, addresses: list[str]) -> Walk:
    """Every page, opened at a phone's width and then made wider."""
    found = Walk()
    with long_named_person(console, browser) as tab:
        devtools = tab.context.new_cdp_session(tab.page)
        for address in addresses:
            for width in WIDTHS:
                tab.page.set_viewport_size({"width": width, "height": HEIGHT})
                if width == WIDTHS[0]:
                    tab.go(address)
                tab.is_drawn(width)
                found.layout[width] += [(address, *each) for each in layout_faults(tab)]
                if width in (PHONES[0], DESK):
                    found.names[width] += [(address, *each) for each in name_faults(tab, devtools)]
            if cut := tab.page.evaluate(CUT_TABLES):
                found.cut_tables[address] = cut
            count, wrong = moment_faults(tab)
            found.moments_seen += count
            found.moments += [(address, *each) for each in wrong]
            found.pages += 1
    return found


SIDEWAYS = """() => {
  const root = document.documentElement;
  const wide = [...document.querySelectorAll("main *, header *")].filter((each) => {
    const box = each.getBoundingClientRect();
    return box.right > root.clientWidth + 1 && box.width && !each.closest(".scroll, .sr, pre, nav.side, svg, option");
  });
  return [root.scrollWidth - root.clientWidth, wide.slice(0, 5).map((each) => each.outerHTML.slice(0, 160))];
}"""
CUT = """() => [...document.querySelectorAll("main .tile, main .card, main .button, main .badge")]
  .filter((each) => each.scrollWidth > each.clientWidth + 1
    || (!each.matches(".badge") && each.scrollHeight > each.clientHeight + 1))
  .map((each) => each.outerHTML.slice(0, 200))"""
OUT_OF_REACH = """() => [...document.querySelectorAll("main td.actions a, main td.actions button, main .page-head .button")]
  .filter((each) => {
    const box = each.getBoundingClientRect();
    return box.width && (box.left < 0 || box.right > document.documentElement.clientWidth);
  })
  .map((each) => each.outerHTML.slice(0, 200))"""
CUT_TABLES = """() => [...document.querySelectorAll("main .scroll")].filter((each) => each.scrollWidth > each.clientWidth + 1)
  .map((each) => each.textContent.replace(/\\s+/g, " ").slice(0, 200))"""


def layout_faults(tab: Tab) -> list[tuple[Any, ...]]:
    overflow, wide = tab.page.evaluate(SIDEWAYS)
    faults: list[tuple[Any, ...]] = [("sideways", overflow, wide)] if overflow > 0 else []
    faults += [("cut", each) for each in tab.page.evaluate(CUT)]
    faults += [("out of reach", each) for each in tab.page.evaluate(OUT_OF_REACH)]
    return faults


@pytest.mark.parametrize("width", WIDTHS)
def test_no_page_scrolls_sideways_and_what_can_be_done_is_in_reach(walk: Walk, width: int) -> None:
    assert walk.pages == len(PLACES)
    assert walk.layout[width] == []


def test_on_a_small_desk_the_lists_show_all_their_columns(walk: Walk) -> None:
    whole = ("/topics/", "/groups/", "/operations/", "/audit/", "/tokens/", "/users/", "/clients/", "/reports/")
    assert set(whole) <= set(PLACES)
    assert {address: cut for address, cut in walk.cut_tables.items() if address in whole} == {}


@pytest.mark.parametrize("width", [PHONES[0], DESK])
def test_dialogs_folds_and_refused_forms_fit_as_well(person: Tab, width: int) -> None:
    page = person.page
    page.set_viewport_size({"width": width, "height": HEIGHT})

    def fits(what: str) -> None:
        assert page.evaluate(SIDEWAYS)[0] <= 0, what
        assert page.evaluate(
            "() => [...document.querySelectorAll('dialog[open]')].every((each) => each.scrollWidth <= each.clientWidth)"
        )

    person.go("/")
    person.is_connected()
    page.click(f'[data-key="replica-{BROKERS}-2"] >> text=Elect master')
    person.sees("No acknowledged message is lost", "#dialog-place dialog")
    fits("the election's dialog")
    page.click("#dialog-place dialog >> text=Cancel")
    page.keyboard.press("Control+k")
    page.keyboard.type("without")
    person.sees(TOPIC, "#palette-found")
    fits("the palette")
    person.go(f"/topics/{TOPIC}/messages?group=broker-a&queue_id=0&count=5")
    page.click("td.number a >> nth=0")
    page.wait_for_selector(".unfolded .tabs")
    fits("a message unfolded in its list")
    person.go("/topics/new")
    page.fill("#name", "not a name " * 12)
    page.click("main >> button:has-text('Create')")
    person.sees("letters, digits", ".field")
    fits("a refused form")
    person.go("/tokens/")
    page.fill("#name", "t" * 80)
    page.click("text=Make token")
    page.wait_for_selector("#secret-1")
    fits("a new token")
    if width < TABLET:
        page.click("[data-toggle=nav]")
        page.wait_for_selector("nav.side >> text=Audit trail", state="visible")
        fits("the menu")
    errors, person.errors = person.errors, []
    assert [each for each in errors if "400" not in each] == []


# ---- names for who cannot see

NAMED_ROLES = {
    *("link", "button", "textbox", "searchbox", "combobox", "listbox", "checkbox", "radio", "spinbutton", "dialog"),
    *("navigation", "progressbar", "Date", "DateTime", "InputTime"),
}
UNLABELLED = """() => [...document.querySelectorAll("input, select, textarea")]
  .filter((each) => each.type !== "hidden" && !each.hidden && !each.labels.length && !each.ariaLabel)
  .map((each) => each.outerHTML)"""
TABLES_WITHOUT_HEADERS = """() => [...document.querySelectorAll("table")]
  .filter((each) => !each.querySelector("th") || [...each.querySelectorAll("th")].some((th) => !th.textContent.trim()))
  .map((each) => each.outerHTML.slice(0, 300))"""


def name_faults(tab: Tab, devtools: Any) -> list[tuple[Any, ...]]:
    faults: list[tuple[Any, ...]] = []
    for node in devtools.send("Accessibility.getFullAXTree")["nodes"]:
        role = node.get("role", {}).get("value")
        if not node["ignored"] and role in NAMED_ROLES and not node.get("name", {}).get("value", "").strip():
            faults.append((role, node.get("properties")))
    faults += [("no label", each) for each in tab.page.evaluate(UNLABELLED)]
    faults += [("no headers", each) for each in tab.page.evaluate(TABLES_WITHOUT_HEADERS)]
    titles = tab.page.locator("h1").count()
    return faults if titles == 1 else [*faults, ("titles", titles)]


@pytest.mark.parametrize("width", [PHONES[0], DESK])
def test_whatever_can_be_used_has_a_name_and_every_page_one_title(walk: Walk, width: int) -> None:
    assert walk.names[width] == []


# ---- moments

MOMENTS = """() => {
  const wrong = [];
  for (const time of document.querySelectorAll("time")) {
    const made = Times.element(Date.parse(time.dateTime), { toMinute: !time.querySelector(".ms") });
    if (made.outerHTML !== time.outerHTML) wrong.push([time.outerHTML, made.outerHTML]);
  }
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const place = texts.currentNode.parentElement;
    // a preview is in its schedule's zone, which stands beside it
    if (place.closest("time, pre, code, option, script, datalist, input, textarea, .u-legend, #cron-preview")) continue;
    const text = texts.currentNode.nodeValue;
    if (/\\d{4}-\\d{2}-\\d{2}|\\b\\d{2}:\\d{2}:\\d{2}\\b/.test(text)) wrong.push([place.outerHTML, text]);
  }
  return [document.querySelectorAll("time").length, wrong];
}"""


TITLES = "() => [...document.querySelectorAll('main time')].map((each) => each.title)"


def moment_faults(tab: Tab) -> tuple[int, list[Any]]:
    count, wrong = tab.page.evaluate(MOMENTS)
    titles = [
        title
        for title in tab.page.evaluate(TITLES)
        if not re.fullmatch(rf"\w{{3}} [\d-]{{10}} [\d:]{{8}}\.\d{{3}} {ZONE}", title)
    ]
    return count, [*wrong, *(("title", title) for title in titles)]


def test_all_moments_of_all_pages_have_one_form_in_the_viewer_s_zone(walk: Walk) -> None:
    """The server's elements are those that the browser would make, and no moment is written in any other way."""
    assert walk.moments == []
    assert walk.moments_seen > 80


def test_a_table_says_the_same_moments_while_its_report_runs_and_afterwards(person: Tab, console: Console) -> None:
    report = """
from webapp.reports import stream
from webapp.reports.models import ReportRun
from webapp.reports.catalogue import Row
def row(minute):
    place = {"topic": "orders", "group": "broker-a", "queue_id": 0}
    return Row("throughput", str(minute), {**place, "minute": f"2026-03-29T00:{minute:02}:00Z", "messages": 1, "bytes": 9})
"""
    code = 'run = ReportRun.objects.create(report="throughput", parameters={})\nstream.starting(run.pk)\nprint(run.pk)'
    run_id = console.django(report + code).strip()
    person.go(f"/reports/runs/{run_id}/")
    console.django(f"{report}stream.running('{run_id}'); stream.publish('{run_id}', [row(m) for m in range(3)])")
    person.sees("3 rows so far", '[data-section="throughput"]')
    moments = "() => [...document.querySelectorAll('[data-rows] time')].map((each) => each.outerHTML)"
    running = person.page.evaluate(moments)
    assert "2026-03-29 05:32</time>" in running[0]
    console.django(f"{report}stream.succeeded('{run_id}', [row(m) for m in range(3)])")
    person.sees("succeeded", "#run-state")
    assert person.page.evaluate(moments) == running


# ---- charts

REMEMBER_LABELS = """() => {
  window.labels = [];
  const fillText = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    window.labels.push(text);
    return fillText.call(this, text, ...rest);
  };
}"""


def test_the_chart_of_a_report_of_one_minute_has_each_label_once(person: Tab, addresses: list[str]) -> None:
    [finished] = [address for address in addresses if "/runs/" in address][:1]
    person.go(finished)
    person.page.wait_for_selector("[data-chart] canvas")
    person.page.evaluate(REMEMBER_LABELS)
    person.page.set_viewport_size({"width": 1000, "height": HEIGHT})  # so that it is drawn anew
    # the page may not evaluate text, so it cannot be asked for this by itself again and again
    eventually("the chart is drawn", lambda: person.page.evaluate("window.labels.length"))
    labels = [label.split("\n")[0] for label in person.page.evaluate("window.labels")]
    minutes = [label for label in labels if re.fullmatch(r"\d\d:\d\d", label)]
    assert len(minutes) >= 3
    assert len(set(minutes)) == len(minutes), labels
    assert not [label for label in labels if re.fullmatch(r"\d\d:\d\d:\d\d", label)], "seconds say nothing here"
    assert not [label for label in labels if "." in label], "messages are whole"
