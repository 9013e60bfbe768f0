"""How long sends took to be acknowledged counts each message once, wherever it is taken: in the loop or beside it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokerd.sending.outcomes import SendOutcome
from remoting import codes
from tests.support.client_bytes import encode_batch_body
from tests.support.sending_broker import (
    Broker,
    Lending,
    Peer,
    lend_for_long,
    on_both_loops,
    send_frame,
    serving,
    stay_soon,
)
from tests.unit.brokerd.sending.kernel_sends import FIELDS, item, json_send
from tests.unit.brokerd.store.stores import draft

BATCH = 32


@pytest.fixture(autouse=True)
def _densely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends stays soon, though the test is slow, and until somebody wants him back."""
    stay_soon(monkeypatch)
    lend_for_long(monkeypatch)


def batch(opaque: int, messages: int = BATCH, *, alike: bool = True) -> bytes:
    """Messages in one request, all of one size or each of another."""
    items = [item(number, b"b" * (1 if alike else 1 + number)) for number in range(messages)]
    return json_send({**FIELDS, "b": "T", "e": "0", "m": "true"}, encode_batch_body(items), opaque, code=320)


def unawaited(opaque: int) -> bytes:
    """A message whose sender is content with less than an acknowledgement."""
    properties = f"UNIQ_KEY\x01{opaque:032X}\x02WAIT\x01false\x02"
    return json_send({**FIELDS, "b": "T", "e": "0", "i": properties}, b"early", opaque)


# What is written at once, how many answers there are to it, and how many messages it has
LOADS = {
    "single sends": (b"".join(send_frame(n, b"body") for n in range(5)), 5, 5),
    "a batch": (batch(1), 1, BATCH),
    "a batch of different messages": (batch(1, alike=False), 1, BATCH),
    "one-way": (b"".join(send_frame(n, b"body", oneway=True) for n in range(3)), 0, 3),
    "one-way before others": (send_frame(1, b"body", oneway=True) + batch(2) + send_frame(3, b"body"), 2, BATCH + 2),
    "for whom nobody waits": (unawaited(1) + unawaited(2), 2, 2),
}


async def take(peer: Peer, content: bytes, answers: int) -> None:
    """Send that, and have it answered."""
    peer.writer.write(content)
    if answers:
        assert {answer.code for answer in await peer.answers(answers)} == {codes.SUCCESS}


async def assert_counted(broker: Broker, messages: int) -> None:
    """Who asks when so many messages are to be read finds as many whose time is known."""
    [reader] = await broker.connected()
    stored = 0
    while stored < messages:
        reader.ask(codes.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
        stored = int((await reader.answer()).ext["offset"])
    counters = broker.core.counters
    assert (sum(counters.puts.counts), counters.in_messages) == (messages, messages)


@pytest.mark.parametrize("waits_for_disk", [False, True], ids=["at once", "for the disk"])
@pytest.mark.parametrize("name", LOADS)
def test_each_message_counts_once_in_the_loop_and_beside_it(name: str, waits_for_disk: bool, tmp_path: Path) -> None:
    content, answers, messages = LOADS[name]

    async def in_loop() -> None:
        async with serving(tmp_path / "loop", Lending(has_thread=False), waits_for_disk=waits_for_disk) as broker:
            [peer] = await broker.connected()
            await take(peer, content, answers)
            await assert_counted(broker, messages)

    async def beside() -> None:
        async with serving(tmp_path / "beside", waits_for_disk=waits_for_disk) as broker:
            [peer] = await broker.staying()
            before = peer.opaque  # as many messages
            await assert_counted(broker, before)
            await broker.until(lambda: broker.is_lent)
            await take(peer, content, answers)
            await assert_counted(broker, before + messages)
            await broker.all_back()
            await assert_counted(broker, before + messages)
            assert broker.taken >= content.count(b'"extFields"')

    asyncio.run(in_loop())
    asyncio.run(beside())


@on_both_loops
async def test_who_comes_back_has_his_messages_count_once(directory: Path) -> None:
    """Though the answers leave in the loop, behind the disk."""
    async with serving(directory, waits_for_disk=True) as broker:
        peers = await broker.staying(2)
        before = sum(peer.opaque for peer in peers)
        await broker.until(lambda: broker.is_lent)
        with broker.store.commitlog.turns.contents:  # no sync begins
            frames = broker.taken_meanwhile
            for number, peer in enumerate(peers):
                peer.writer.write(batch(100 + number))
            await broker.until(lambda: broker.taken_meanwhile == frames + len(peers))
            broker.sends.meaning_changes()
            assert not broker.carrier.has_senders
        for peer in peers:
            assert (await peer.answer()).code == codes.SUCCESS
        await assert_counted(broker, before + len(peers) * BATCH)


@on_both_loops
async def test_what_is_appended_by_itself_counts_too(directory: Path) -> None:
    async with serving(directory, Lending(has_thread=False), waits_for_disk=True) as broker:
        outcomes: list[SendOutcome] = []
        for properties in (b"WAIT\x01false\x02", b"TAGS\x01t\x02"):
            broker.core.sender.send([draft(b"body", topic="T", properties=properties)] * 2, outcomes.extend)
        await broker.until(lambda: len(outcomes) == 4)
        assert (sum(broker.core.counters.puts.counts), broker.core.counters.in_messages) == (4, 4)
