"""Read buffers through a connection and the kernel: however they are cut, and whatever stands between, as request by request."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brokerd.processors.sending import send
from brokerd.sending.boundary import Stop
from brokerd.sending.counters import Counters
from brokerd.store.put_status import PutStatus
from remoting import codes, frame
from remoting.disk import Bytes
from remoting.errors import StorageError
from remoting.frame import Command
from remoting.record.hosts import pack_host
from remoting.transport.connection import RemotingConnection
from remoting.transport.limits import ConnectionLimits
from remoting.transport.taking import MOST_TAKEN
from tests.support.client_bytes import encode_batch_body, encode_compact
from tests.support.kernels import make_kernel, take_one
from tests.unit.brokerd.sending.test_send import TOPICS, Broker, batch_items, request

pytestmark = pytest.mark.usefixtures("both_kernels")

PEER = pack_host("10.0.0.1", 40000)
ECHO = 900


@pytest.fixture
def broker() -> Iterator[Broker]:
    broker = Broker(1 << 20)
    yield broker
    broker.store.close()


class Transport:
    """Takes what is written."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.is_reading = True
        self.is_aborted = False

    def set_write_buffer_limits(self, _high: int, _low: int) -> None: ...

    def get_extra_info(self, _name: str) -> tuple[str, int]:
        return "10.0.0.1", 40000

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.written += b"".join(parts)

    def is_closing(self) -> bool:
        return self.is_aborted

    def abort(self) -> None:
        self.is_aborted = True

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True

    def answers(self) -> list[Command]:
        answers: list[Command] = []
        assert frame.decode_frames(bytes(self.written), answers) == len(self.written)
        return answers


class Peer:
    """A connection to a broker's senders; every other request is answered at once."""

    def __init__(self, broker: Broker, *, offers: bool = True, limits: ConnectionLimits | None = None) -> None:
        self.broker = broker
        self.others: list[int] = []
        processor = broker.processor
        handlers = {
            codes.SEND_MESSAGE: processor.handle_long_names,
            codes.SEND_MESSAGE_V2: processor.handle,
            codes.SEND_BATCH_MESSAGE: processor.handle,
            ECHO: self.echo,
        }
        self.transport = Transport()
        self.connection = RemotingConnection(
            handlers, limits or ConnectionLimits(), taker=processor if offers else None
        )
        self.connection.connection_made(cast(asyncio.Transport, self.transport))

    def echo(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for each in requests:
            self.others.append(each.opaque)
            connection.respond(each)

    async def finish(self) -> list[Command]:
        """Let everything be answered."""
        for _ in range(200):
            self.broker.next_turn()
            self.broker.acknowledger.complete()
            await asyncio.sleep(0)
            if not self.broker.turn and not self.connection.offered:
                break
        await asyncio.sleep(0)  # in which leaves what was answered in the last one
        return self.transport.answers()


def encoded(command: Command, *, compact: bool = False) -> bytes:
    if compact:
        return encode_compact(command)
    return frame.encode_request(command.code, command.opaque, command.ext, command.body, oneway=command.is_oneway)


KINDS = ["plain", "batch", "compact", "one-way", "odd", "early", "long", "other", "no text", "spaced"]
kinds = st.lists(
    st.tuples(st.sampled_from(KINDS), st.binary(min_size=1, max_size=300), st.integers(0, 3)), min_size=1, max_size=30
)


def frame_of(opaque: int, kind: str, body: bytes, queue: int) -> bytes:
    properties = {"UNIQ_KEY": f"{opaque:032d}", "TAGS": "t"}
    if kind == "other":
        return frame.encode_request(ECHO, opaque, {"n": "1"}, body)
    if kind == "batch":
        body = encode_batch_body(batch_items(opaque, body, properties, 0, 3, ""))
        return encoded(request(opaque, body, properties, codes.SEND_BATCH_MESSAGE, e=str(queue), m="true"))
    if kind == "odd":
        properties["TIMER_OUT_MS"] = "1"  # for the general path
    if kind == "early":
        properties["WAIT"] = "false"
    command = request(opaque, body, properties, e=str(queue))
    if kind == "one-way":
        command.flag = codes.FLAG_ONEWAY
    if kind == "long":
        names = {"b": "topic", "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties"}
        command = Command(codes.SEND_MESSAGE, opaque, {long: command.ext[short] for short, long in names.items()}, body)
    data = encoded(command, compact=kind == "compact")
    if kind == "no text":
        return data.replace(b'"j":"0"', b'"j":  0')
    if kind == "spaced":
        return frame_with(b" " + data[8 : 8 + int.from_bytes(data[5:8])], command.body)
    return data


def frame_with(header: bytes, body: Bytes) -> bytes:
    return (4 + len(header) + len(body)).to_bytes(4) + len(header).to_bytes(4) + header + body


def cut(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    places = sorted({each % (len(data) + 1) for each in cuts} | {0, len(data)})
    return [data[start:end] for start, end in pairwise(places)]


def check_same(frames: Sequence[bytes], chunks: Sequence[bytes], turns: Sequence[bool], *, seals: bool = True) -> None:
    """Chunks through the kernel do what the frames do one by one on the general path; a turn passes after some chunks."""

    async def run() -> None:
        fast, slow = Broker(), Broker()
        slow.kernel.topics_changed(dict.fromkeys(TOPICS))
        fast.store.adds_checksums = slow.store.adds_checksums = seals
        ours, theirs = Peer(fast), Peer(slow, offers=False)
        for index, chunk in enumerate(chunks):
            ours.connection.data_received(chunk)
            if turns[index % len(turns)]:
                fast.next_turn()
        for each in frames:
            theirs.connection.data_received(each)
            slow.next_turn()
        found, wanted = await ours.finish(), await theirs.finish()
        assert fast.store.commitlog.read(0, 1 << 16) == slow.store.commitlog.read(0, 1 << 16)
        assert fast.store.queue_offsets.table == slow.store.queue_offsets.table
        assert ours.others == theirs.others
        by_opaque = {answer.opaque: answer for answer in wanted}
        assert sorted(answer.opaque for answer in found) == sorted(by_opaque)
        for answer in found:
            other = by_opaque[answer.opaque]
            assert (answer.code, answer.remark) == (other.code, other.remark)
            assert {**other.ext, **answer.ext} == {**answer.ext, **other.ext}
        for peer in (ours, theirs):
            assert peer.connection._in_flight == 0
            assert peer.transport.is_reading
        fast.store.close()
        slow.store.close()

    asyncio.run(run())


@settings(deadline=None, max_examples=80)
@given(
    kinds,
    st.lists(st.integers(0, 1 << 20), max_size=12),
    st.lists(st.booleans(), min_size=1, max_size=5),
    st.booleans(),
)
def test_buffers_cut_anywhere_do_what_their_requests_do_one_by_one(
    chosen: list[Any], cuts: list[int], turns: list[bool], seals: bool
) -> None:
    frames = [frame_of(opaque, *each) for opaque, each in enumerate(chosen)]
    check_same(frames, cut(b"".join(frames), cuts), turns, seals=seals)


@pytest.mark.parametrize("turns", [[True], [False], [False, True, True]])
def test_buffers_that_come_byte_by_byte(turns: list[bool]) -> None:
    frames = [frame_of(opaque, kind, b"body", opaque % 4) for opaque, kind in enumerate(KINDS * 2)]
    data = b"".join(frames)
    check_same(frames, [data[at : at + 1] for at in range(len(data))], turns)
    check_same(frames, [data], turns)


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.lists(
            st.tuples(
                st.sampled_from([*KINDS, *["plain"] * 20]), st.binary(min_size=1, max_size=300), st.integers(0, 3)
            )
        ),
        min_size=1,
        max_size=7,
    ),
    st.lists(st.integers(0, 1 << 20), max_size=4),
    st.sampled_from([PutStatus.PUT_OK, PutStatus.FLUSH_DISK_TIMEOUT, PutStatus.SERVICE_NOT_AVAILABLE]),
    st.sampled_from([1 << 12, 1 << 16]),
    st.sampled_from([2, 128]),
)
def test_what_several_connections_sent_in_a_turn_is_taken_together_as_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
    chosen: list[list[Any]],
    cuts: list[int],
    status: PutStatus,
    segment_size_bytes: int,
    at_once: int,
) -> None:
    sent = [b"".join(frame_of(100 * n + k, *each) for k, each in enumerate(kinds)) for n, kinds in enumerate(chosen)]
    found: list[list[object]] = []

    async def run() -> None:
        broker = Broker(segment_size_bytes)
        peers = [Peer(broker) for _ in sent]
        parts = [cut(data, cuts) for data in sent]
        for turn in range(max(map(len, parts))):
            for peer, chunks in zip(peers, parts, strict=True):
                if turn < len(chunks):
                    peer.connection.data_received(chunks[turn])
            broker.next_turn()
        for _ in range(4):
            broker.next_turn()
            broker.acknowledger.complete(status)
            await asyncio.sleep(0)
        log = broker.store.commitlog
        found.append([log.read(start, 1 << 16) for start in range(0, log.end_offset, segment_size_bytes)])
        found[-1] += [broker.store.queue_offsets.table, broker.counters.in_messages]
        found[-1] += [(bytes(peer.transport.written), peer.others, peer.connection._in_flight) for peer in peers]
        broker.store.close()

    for least in (1 << 30, 1):
        monkeypatch.setattr(send, "LEAST_TOGETHER", least)
        monkeypatch.setattr(send, "MOST_TOGETHER", at_once)
        asyncio.run(run())
    assert found[0] == found[1]


async def test_a_thousand_connections_with_one_message_each(broker: Broker) -> None:
    peers = [Peer(broker) for _ in range(1000)]
    for opaque, peer in enumerate(peers):
        peer.connection.data_received(frame_of(opaque, "plain", b"body", opaque % 4))
    broker.next_turn()
    assert len(broker.acknowledger.waiting) == 1, "they are appended together"
    broker.acknowledger.complete()
    assert [[answer.opaque for answer in peer.transport.answers()] for peer in peers] == [[n] for n in range(1000)]
    assert broker.store.queue_offsets.table == {("T", queue): 250 for queue in range(4)}


async def test_connections_that_close_in_the_turn_in_which_they_send(broker: Broker) -> None:
    peers = [Peer(broker) for _ in range(6)]
    for opaque, peer in enumerate(peers):
        peer.connection.data_received(frame_of(opaque, "plain", b"body", 1))
    for peer in peers[::2]:
        peer.connection.connection_lost(None)
    broker.next_turn()
    broker.next_turn()
    peers[1].connection.connection_lost(None)  # before it is answered
    broker.acknowledger.complete()
    assert broker.store.queue_offsets.table == {("T", 1): 6}
    assert [len(peer.transport.answers()) for peer in peers] == [0, 0, 0, 1, 0, 1]


async def test_a_refusing_disk_answers_all_whose_sends_were_laid_out_together(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("cannot write commitlog: I/O error")

    monkeypatch.setattr(broker.store.commitlog, "append", refuse)
    peers = [Peer(broker) for _ in range(4)]
    for opaque, peer in enumerate(peers):
        peer.connection.data_received(frame_of(opaque, "plain", b"body", 1) + frame_of(100, "one-way", b"body", 1))
    broker.next_turn()
    for opaque, peer in enumerate(peers):
        [answer] = peer.transport.answers()
        assert (answer.opaque, answer.code) == (opaque, codes.SERVICE_NOT_AVAILABLE)
        assert peer.connection._in_flight == 0


@pytest.mark.parametrize("peer_count", [1, 6])
async def test_after_a_failure_amid_a_turn_nothing_of_it_is_taken_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, peer_count: int
) -> None:
    """What was sent may be in the log: whoever sent it asks anew, on another connection."""

    def fail(*_: object) -> None:
        raise RuntimeError("nobody thought of this")

    peers = [Peer(broker) for _ in range(peer_count)]
    for opaque, peer in enumerate(peers):
        peer.connection.data_received(frame_of(opaque, "plain", b"body", 1))
    with monkeypatch.context() as patched:
        patched.setattr(Counters, "stored", fail)
        with pytest.raises(RuntimeError, match="nobody thought of this"):
            broker.next_turn()
    assert broker.store.queue_offsets.table == {("T", 1): peer_count}
    assert all(peer.transport.is_aborted for peer in peers)
    for peer in peers:
        peer.connection.connection_lost(None)
    broker.next_turn()
    assert broker.store.queue_offsets.table == {("T", 1): peer_count}, "it was taken once more"
    late = Peer(broker)
    late.connection.data_received(frame_of(1, "plain", b"body", 1))
    broker.next_turn()
    broker.acknowledger.complete()
    assert [answer.code for answer in late.transport.answers()] == [codes.SUCCESS]


def test_the_kernel_tells_where_it_stopped_and_why() -> None:
    broker = Broker(segment_size_bytes=8192)
    kernel = broker.kernel
    plain, echo = encoded(request(1)), frame.encode_request(ECHO, 2)
    for behind, stop in (
        (b"", Stop.END),
        (echo[:-1], Stop.END),
        (plain[:3], Stop.END),
        (echo, Stop.OTHER),
        (encoded(request(3, b="Unknown")), Stop.OTHER),
        (encoded(request(3, e="7")), Stop.OTHER),
        (encoded(request(3, b"x" * 9000)), Stop.OTHER),
        (encoded(request(3, b"x" * 7900)), Stop.FULL),
        (encode_response(), Stop.OTHER),
        (plain.replace(b'"opaque":1', b'"opaque":"')[:-2] + plain[-2:], Stop.OTHER),
        (b"\0\0\0\x08\0\0\0\x40" + bytes(64), Stop.OTHER),
        (b"\0\0\0\x08\x07\0\0\x04" + bytes(4), Stop.OTHER),
    ):
        run = broker.store.begin_run()
        taken = take_one(kernel, run, plain * 2 + behind, len(plain), PEER, MOST_TAKEN)
        assert (taken.position, taken.stop, taken.opaques) == (2 * len(plain), stop, [1]), behind[:40]
        assert run.message_count == 1
    run = broker.store.begin_run()
    taken = take_one(kernel, run, plain * 5, 0, PEER, 3)
    assert (taken.position, taken.stop, run.message_count) == (3 * len(plain), Stop.END, 3)
    assert kernel.may_take(plain, PEER)
    assert not kernel.may_take(plain[:-1], PEER), "an unfinished frame is not worth a turn"
    assert not kernel.may_take(echo, PEER)
    assert kernel.may_take(plain, pack_host("fe80::1", 1))
    assert make_kernel(pack_host("fe80::1", 1)).may_take(plain, PEER)


def encode_response() -> bytes:
    command = request(3)
    command.flag = codes.FLAG_RESPONSE
    return encode_compact(command)


def test_numbers_of_a_run_that_was_dropped_are_taken_by_the_next() -> None:
    broker = Broker()
    data = encoded(request(1)) * 3
    first, second = broker.store.begin_run(), broker.store.begin_run()
    for run in (first, second):
        take_one(broker.kernel, run, data, 0, PEER, MOST_TAKEN)
    assert first.records == second.records
    assert list(first.all_entries()) == list(second.all_entries())
    broker.store.append_laid_out(second)
    assert broker.store.queue_offsets.next("T", 1) == 3


async def test_a_peer_with_many_sends_lets_others_have_their_turn() -> None:
    broker = Broker(segment_size_bytes=1 << 20)
    eager, modest = Peer(broker), Peer(broker)
    eager.connection.data_received(b"".join(encoded(request(n)) for n in range(2 * MOST_TAKEN + 1)))
    modest.connection.data_received(encoded(request(1)))
    broker.turn.pop(0)()
    assert broker.store.queue_offsets.next("T", 1) == MOST_TAKEN + 1
    assert len(await eager.finish()) == 2 * MOST_TAKEN + 1
    assert len(modest.transport.answers()) == 1


async def test_what_is_offered_is_refused_when_the_broker_is_no_master_any_more() -> None:
    broker = Broker()
    peer = Peer(broker)
    peer.connection.data_received(encoded(request(1)) + encoded(request(2)))
    broker.store.set_appendable(False)
    assert [answer.code for answer in await peer.finish()] == [codes.SERVICE_NOT_AVAILABLE] * 2
    assert broker.counters.refused["rule"] == 0
    assert sum(broker.counters.refused.values()) == 2
    assert broker.store.commitlog.end_offset == 0


async def test_what_came_before_the_end_of_a_connection_is_stored() -> None:
    broker = Broker()
    peer = Peer(broker)
    peer.connection.data_received(encoded(request(1)) + frame.encode_request(ECHO, 2) + encoded(request(3)))
    peer.connection.connection_lost(None)
    assert peer.others == [2]
    await peer.finish()
    assert broker.store.queue_offsets.next("T", 1) == 2


async def test_near_the_limit_of_requests_in_flight_nothing_is_taken_undecoded() -> None:
    broker = Broker()
    peer = Peer(broker, limits=ConnectionLimits(max_in_flight=MOST_TAKEN + 3))
    for n in range(MOST_TAKEN + 10):
        peer.connection.data_received(encoded(request(n)))
        assert bool(peer.connection.offered) == (n <= 3), n
        broker.next_turn()
    assert not peer.transport.is_reading
    assert broker.store.queue_offsets.next("T", 1) == MOST_TAKEN + 4
    assert len(await peer.finish()) == MOST_TAKEN + 10
    assert peer.transport.is_reading


async def test_after_an_offer_in_vain_some_reads_are_decoded_at_once() -> None:
    broker = Broker()
    peer = Peer(broker)
    odd, plain = frame_of(1, "odd", b"x", 1), frame_of(2, "plain", b"x", 1)
    offered = []
    for data in (plain, odd + plain, *[plain] * 17, plain + odd, plain):
        peer.connection.data_received(data)
        offered.append(bool(peer.connection.offered))
        broker.next_turn()
    assert offered == [True, True, *[False] * 16, True, True, True]
    assert broker.store.queue_offsets.next("T", 1) == 23


async def test_what_comes_while_sends_are_offered_is_taken_with_them() -> None:
    broker = Broker()
    peer = Peer(broker)
    data = b"".join(encoded(request(n)) for n in range(9))
    for piece in (data[:500], data[500:1500], data[1500:]):
        peer.connection.data_received(piece)
    broker.turn.pop(0)()
    assert broker.store.queue_offsets.next("T", 1) == 9
    assert not broker.turn
    assert [answer.opaque for answer in await peer.finish()] == list(range(9))


async def test_a_peer_that_sends_faster_than_it_is_served_is_not_read_from_meanwhile() -> None:
    broker = Broker(segment_size_bytes=64 << 20)
    peer = Peer(broker, limits=ConnectionLimits(max_held_bytes=100_000))
    piece = b"".join(encoded(request(n)) for n in range(300))
    sent = 0
    while peer.transport.is_reading:
        peer.connection.data_received(piece)
        sent += 1
    assert (sent - 1) * len(piece) < 100_000 <= sent * len(piece)
    broker.turn.pop(0)()
    was_reading = [peer.transport.is_reading]
    while broker.turn:
        broker.turn.pop(0)()
        was_reading.append(peer.transport.is_reading)
    assert was_reading == sorted(was_reading)  # once it reads again, it does until more comes
    assert not was_reading[0]
    assert was_reading[-1]
    assert broker.store.queue_offsets.next("T", 1) == sent * 300
    assert len(await peer.finish()) == sent * 300


def test_a_buffer_may_begin_with_a_send_however_its_header_is_written() -> None:
    kernel = make_kernel(pack_host("10.0.0.2", 1))

    def framed(header: bytes, encoding: int = 0) -> bytes:
        return (4 + len(header)).to_bytes(4) + (encoding << 24 | len(header)).to_bytes(4) + header

    for code in (10, 310, 320):
        for text in (
            b'{"code":%d,"flag":0}',
            b'{ "code" : %d }',
            b'{"flag":0,"code":%d}',
            b'{"flag":0,"code": %d,"opaque":1}',
        ):
            assert kernel.may_take(framed(text % code), PEER)
            assert not kernel.may_take(framed(text % (code + 1)), PEER)
        assert kernel.may_take(framed(code.to_bytes(2) + bytes(15), 1), PEER)
        assert not kernel.may_take(framed((code + 1).to_bytes(2) + bytes(15), 1), PEER)
    assert not kernel.may_take(framed(b"{}") + b'"code":310', PEER), "what is behind the header is not looked at"
    assert not kernel.may_take(framed(b""), PEER)
