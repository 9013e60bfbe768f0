"""The log of a broker of the release before messages came again in place: what it holds goes on where that release left it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brokerd.pop.requests import AckStatus
from brokerd.store.draft import Draft
from remoting.record.codec import decode_records
from tests.support.memory_log import MemoryRecordLog
from tests.support.pop_broker import PopBroker, body_of
from tests.support.turns import Turns

GOLDEN = Path(__file__).parents[3] / "golden" / "logboom-pop"
GIVEN: dict[str, Any] = json.loads((GOLDEN / "given.json").read_text())
OF_O: dict[str, Any] = {"group": "o", "topic": "s", "fifo": True}


@pytest.fixture
def broker() -> PopBroker:
    """The first master of this release; its log is byte for byte the old one's, but for the times of storing."""
    turns = Turns(GIVEN["now_ms"])
    log = MemoryRecordLog(turns.wall_ms)
    for record in decode_records((GOLDEN / "log").read_bytes()):
        log.append_messages([Draft.again(record)])
        assert log.end_offset == record.physical_offset + record.size
    return PopBroker(log, turns).become_master()


def test_handles_that_the_old_master_gave_out_are_good(broker: PopBroker) -> None:
    assert set(broker.ack(*GIVEN["held"].values())) == {AckStatus.OK}
    assert set(broker.ack(*GIVEN["held_of_o"].values(), group="o", topic="s")) == {AckStatus.OK}
    assert broker.receive(**OF_O).bodies == ["s2", "s3", "s4", "s5"]
    broker.turns.run(120_000)
    assert not broker.receive().outcome.messages, "what it acked does not come again"


def test_what_was_with_clients_comes_again_and_what_was_acked_does_not(broker: PopBroker) -> None:
    broker.turns.run(60_000)
    again = broker.receive().messages
    assert sorted(map(body_of, again)) == sorted(GIVEN["held"])
    assert {body_of(each): each.delivery_attempt - 1 for each in again} == GIVEN["attempts"]
    assert set(broker.ack(*again)) == {AckStatus.OK}
    ordered = broker.receive(**OF_O).messages
    assert [(body_of(each), each.delivery_attempt) for each in ordered] == [("s1", 3)]
    assert broker.receive(**OF_O).outcome.messages == ()
    assert broker.ack(*ordered, group="o", topic="s") == [AckStatus.OK]
    assert broker.receive(**OF_O).bodies == ["s2", "s3", "s4", "s5"]
