"""Transactions that one kind of broker begins and the other ends: half messages and op records mean the same to both."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from remoting import codes
from tests.interop.apache import Session
from tests.interop.mixed import TOPIC, Member, MixedGroup
from tests.support.cluster import eventually
from tests.support.transaction_client import COMMIT, PATIENCE_S, ROLLBACK, Producer, read_bodies

pytestmark = pytest.mark.slow

# Nothing is given up: an original that loses the lead while it looks at its transactions follows up to a minute later.
_CHECKS = 1000
_OURS = ("transactions.timeout_ms=0", "transactions.check_interval_ms=500", f"transactions.check_max={_CHECKS}")
# The original asks again, and delivers twice, when it looks before its op record of the answer is written.
_ORIGINAL = {
    "transactionTimeOut": 500,
    "transactionCheckInterval": 2000,
    "transactionOpBatchInterval": 50,
    "transactionCheckMax": _CHECKS,
}


@pytest.fixture
def group(tmp_path: Path, session: Session) -> Iterator[MixedGroup]:
    with MixedGroup(tmp_path / "group", session) as group:
        yield group


def test_each_kind_goes_on_with_the_transactions_of_the_other(group: MixedGroup) -> None:
    ours = group.add_ours(_OURS)
    group.wait_in_sync(ours)
    original = group.add_original(**_ORIGINAL)
    group.wait_in_sync(ours, original)
    group.send(1)
    asyncio.run(_there_and_back(group, ours, original))
    group.wait_until_equal_length()
    bodies = [body for body in read_bodies(ours.address, TOPIC) if not body.startswith(f"{TOPIC}:")]
    assert sorted(bodies) == ["begun here", "begun there", "committed here", "committed there"]


async def _there_and_back(group: MixedGroup, ours: Member, original: Member) -> None:
    producer = await _producer(ours)
    await _end(producer, "committed here", COMMIT)
    await _end(producer, "rolled back here", ROLLBACK)
    await producer.begin("begun here")
    await _asked_about(producer, "begun here")  # and says nothing: it is written again now
    await asyncio.to_thread(_give_lead, group, original)
    producer.close()

    producer = await _producer(original)
    await _decide(producer, "begun here")
    await _end(producer, "committed there", COMMIT)
    await _end(producer, "rolled back there", ROLLBACK)
    await producer.begin("begun there")
    await _asked_about(producer, "begun there")
    await _asked_about(producer, "begun there")
    await asyncio.to_thread(_give_lead, group, ours)
    producer.close()

    producer = await _producer(ours)
    await _decide(producer, "begun there")
    producer.close()


async def _producer(member: Member) -> Producer:
    producer = Producer(TOPIC)
    await producer.start(member.address)
    return producer


def _give_lead(group: MixedGroup, member: Member) -> None:
    group.elect(member)
    group.wait_in_sync(*group.members)

    def serves() -> bool:
        return bool(group.send(1))

    eventually(f"{member.process.name} takes messages", serves, 60)


async def _end(producer: Producer, body: str, outcome: str) -> None:
    sent = await producer.begin(body)
    assert (await producer.end(sent, outcome)).code == codes.SUCCESS


async def _asked_about(producer: Producer, body: str) -> None:
    """Until it is asked about this one; a question about another one may have crossed its end."""
    async with asyncio.timeout(PATIENCE_S):
        while (await producer.asked.get())[1].body.decode() != body:
            pass


async def _decide(producer: Producer, body: str) -> None:
    """Commit it when asked; nobody asks about anything else."""
    await producer.answer({body: COMMIT}, set())
