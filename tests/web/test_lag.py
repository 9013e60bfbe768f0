"""Lag on pages, over REST and on the command line: what is not the whole sum says so."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from tests.web.fakes import MemorySnapshots, snapshot_document
from webapp import snapshot
from webapp.groups.management.commands.group import lag_text

BILLING = "billing-of-orders-that-were-paid-with-a-card-and-of-those-that-were-paid-by-a-transfer-xxx"
PAGES = ("/", "/groups/", f"/groups/{BILLING}/", "/topics/", "/topics/orders/")


def put(*, at_least: bool, lag: int | None = 30) -> dict[str, Any]:
    document = snapshot_document()
    group = document["consumer_groups"][0]
    group.update(name=BILLING, lag=lag, lag_at_least=at_least)
    group["topics"][0].update(lag=lag, lag_at_least=at_least)
    group["topics"][0]["queues"][0].update(consumer_offset=None, start_offset=17, lag=None)
    MemorySnapshots.put(document)
    snapshot.current(fresh=True)
    return document


@pytest.mark.parametrize("page", PAGES)
def test_a_sum_that_lacks_a_part_says_at_least(viewer: Client, page: str) -> None:
    put(at_least=False)
    assert "at least" not in viewer.get(page).content.decode()
    put(at_least=True)
    assert "at least 30" in viewer.get(page).content.decode()
    put(at_least=True, lag=None)
    assert "at least" not in viewer.get(page).content.decode(), "of nothing known"


def test_rest_tells_it_in_a_field(viewer: Client) -> None:
    put(at_least=True)
    group = viewer.get(f"/api/v1/consumer-groups/{BILLING}").json()
    assert (group["lag"], group["lag_at_least"]) == ("30", True)
    (topic,) = group["topics"]
    assert (topic["lag"], topic["lag_at_least"], topic["queues"][0]["start_offset"]) == ("30", True, "17")
    assert not viewer.get("/api/v1/consumer-groups/audit_log").json()["lag_at_least"]


def test_a_queue_without_an_offset_shows_where_the_group_starts(viewer: Client) -> None:
    put(at_least=True)
    text = viewer.get(f"/groups/{BILLING}/").content.decode()
    assert text.count("starts at") == 1
    assert '<span class="hint">starts at</span> 17</td>' in text


@pytest.mark.parametrize(
    ("lag", "at_least", "text"), [("30", True, "at least 30"), ("0", False, "0"), (None, True, "?"), (None, False, "?")]
)
def test_the_command_line_says_the_same(lag: str | None, at_least: bool, text: str) -> None:
    assert lag_text({"lag": lag, "lag_at_least": at_least}) == text
