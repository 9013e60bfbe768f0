"""Damage to the brokers' files, on the first page and in REST."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client

from remoting.facts.snapshot import DamagedPart, Scrub
from tests.support.documents import document
from tests.web.fakes import MemorySnapshots, snapshot_document
from webapp import snapshot


def put(*scrubs: Scrub | None) -> None:
    content: dict[str, Any] = snapshot_document()
    for replica, scrub in zip(content["groups"][0]["replicas"], scrubs, strict=False):
        replica["scrub"] = None if scrub is None else document(scrub)
    MemorySnapshots.put(content)
    snapshot.current(fresh=True)


def shown(client: Client) -> str:
    text = client.get("/").content.decode()
    part = text.partition('aria-label="Damage to the data of broker-a"')[2].partition("</dl>")[0]
    return " ".join(part.split())


@pytest.mark.django_db
def test_the_first_page_says_how_far_the_round_is_and_what_was_found(viewer: Client) -> None:
    part = DamagedPart(start_offset=4096, end_offset=5000, since_ms=1_700_000_000_000, reason="nobody has it")
    put(
        Scrub(percent=42, round_began_ms=1),
        Scrub(percent=100, round_ended_ms=2, found=3, repaired=3, last_damage="the log from 1 to 9", last_damage_ms=1),
        Scrub(percent=7, found=2, repaired=1, unrepaired=(part,)),
    )
    text = shown(viewer)
    for words in (
        "intact",
        "round at 42 %",
        "3 of 3 repaired",
        "the log from 1 to 9",
        "1 not repaired",
        "nobody has it",
    ):
        assert words in text, words


@pytest.mark.django_db
def test_nothing_is_said_of_brokers_that_tell_nothing(viewer: Client) -> None:
    put(None, None, None)
    assert shown(viewer) == ""


@pytest.mark.django_db
def test_rest_tells_it(viewer: Client) -> None:
    put(Scrub(percent=42, found=1, repaired=1))
    replica = viewer.get("/api/v1/cluster").json()["groups"][0]["replicas"][0]
    assert (replica["scrub"]["percent"], replica["scrub"]["repaired"]) == (42, "1")
