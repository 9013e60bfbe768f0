"""Any bytes at both ends of the channel: nothing but our own errors, and nothing that is not proven ever counts."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.required_set.replica_progress import ConnectionStage
from brokerd.replication.roles.effects import Role
from brokerd.replication.settings import ReplicationSettings
from brokerd.replication.wire import own_layout, rocketmq_layouts
from brokerd.replication.wire.accepted_end import AcceptedEnd
from brokerd.replication.wire.dialled_end import DialledEnd
from brokerd.replication.wire.frames import Ack, Handshake, Layout, NewerEpoch, Piece, Reply, TransferHeader
from brokerd.store.put_status import PutStatus
from remoting.errors import ProtocolError
from tests.unit.brokerd.replication.group import Group, credentials
from tests.unit.brokerd.replication.wire.ends import Pair

ROUNDS = 1500
HELLO = Handshake(2, highest_epoch=7)
REPLY = Reply(5000, 7, (EpochEntry(3, 0), EpochEntry(7, 4000)), 0)


def conversation() -> tuple[bytes, bytes]:
    """What a correct replica and a correct master said to each other, each in one string."""
    pair = Pair(HELLO)
    up = down = b""
    while pair.replica.output or pair.master.output:
        said, pair.replica.output = b"".join(pair.replica.output), []
        pair.master.receive(said)
        up += said
        said, pair.master.output = b"".join(pair.master.output), []
        pair.replica.receive(said)
        down += said
    down += pair.master.encode_reply(REPLY) + pair.master.encode_transfer_header(TransferHeader(0, 3, 0, 0), 40)
    return up + own_layout.encode_ack(7, 100) + own_layout.encode_ack(7, 200), down + bytes(40)


def plain_replica(rng: Random) -> bytes:
    seed = b"h:%d" % rng.randrange(10**6)
    openings = (
        rocketmq_layouts.HANDSHAKE.pack(1, rng.randrange(3), rng.randrange(3), rng.randrange(9)),
        rocketmq_layouts.HANDSHAKE_HEAD.pack(1, 0, 0, len(seed)) + seed + bytes(rng.choice((0, 50 - len(seed)))),
        rocketmq_layouts.CLASSIC_ACK.pack(rng.randrange(1 << rng.randrange(1, 63))),
    )
    return rng.choice(openings) + b"".join(
        rocketmq_layouts.encode_ack(rng.randrange(9999)) for _ in range(rng.randrange(4))
    )


def plain_master(rng: Random) -> bytes:
    offset, data = 0, rocketmq_layouts.encode_reply(REPLY)
    for _ in range(rng.randrange(5)):
        body = rng.randbytes(rng.randrange(100))
        data += rocketmq_layouts.encode_transfer_header(TransferHeader(offset, 3, 0, 0), len(body)) + body
        offset += len(body)
    return data


def damaged(rng: Random, data: bytes) -> bytes:
    """The bytes with some changed, lost, repeated or put in between; or others altogether."""
    raw = bytearray(data)
    for _ in range(rng.randrange(5)):
        at = rng.randrange(len(raw) + 1)
        match rng.randrange(5):
            case 0 if at < len(raw):
                raw[at] = rng.randrange(256)
            case 1:
                del raw[at : at + rng.randrange(20)]
            case 2:
                raw[at:at] = rng.randbytes(rng.randrange(20))
            case 3:
                raw[at:at] = raw[max(0, at - 20) : at]
            case 4 if at + 4 <= len(raw):
                raw[at : at + 4] = rng.choice((-1, 0, 1, 2, 3, 5, 2**31 - 1)).to_bytes(4, "big", signed=True)
    return bytes(raw) if rng.random() < 0.9 else rng.randbytes(rng.randrange(300))


def split(rng: Random, data: bytes) -> list[bytes]:
    pieces, start = [], 0
    while start < len(data):
        end = start + rng.choice((1, 2, 3, 11, 16, 40, 1000))
        pieces.append(data[start:end])
        start = end
    return pieces


def feed(end: AcceptedEnd | DialledEnd, pieces: list[bytes]) -> tuple[list[object], bool]:
    """The frames, and whether the end refused to go on. Any other error than ours is the test's."""
    frames: list[object] = []
    for piece in pieces:
        try:
            frames += end.receive(piece)
        except ProtocolError:
            return frames, True
    return frames, False


def test_what_a_replica_may_send() -> None:
    rng = Random(1)
    refused = opened = 0
    for _ in range(ROUNDS):
        end = AcceptedEnd(credentials(), allows_rocketmq=rng.random() < 0.7, allows_classic=rng.random() < 0.5)
        data = damaged(rng, conversation()[0] if rng.random() < 0.5 else plain_replica(rng))
        frames, failed = feed(end, split(rng, data))
        refused += failed
        opened += bool(frames)
        assert all(isinstance(frame, Handshake | Ack | NewerEpoch) for frame in frames)
        # A recorded conversation proves nothing to an end that draws other random bytes.
        assert not (frames and end.layout is Layout.OWN)
        if frames:
            assert isinstance(frames[0], Handshake)
    assert refused > ROUNDS // 3
    assert opened > ROUNDS // 10


def test_what_a_proven_replica_may_send() -> None:
    rng = Random(2)
    refused = heard = 0
    for _ in range(ROUNDS):
        pair = Pair(HELLO)
        pair.exchange()
        pair.master.encode_reply(REPLY)
        data = b"".join(own_layout.encode_ack(7, rng.randrange(9999)) for _ in range(rng.randrange(1, 6)))
        frames, failed = feed(pair.master, split(rng, damaged(rng, data)))
        refused += failed
        heard += bool(frames)
        assert all(isinstance(frame, Ack | NewerEpoch) for frame in frames)
    assert refused > ROUNDS // 5
    assert heard > ROUNDS // 5


@pytest.mark.parametrize("layout", [Layout.OWN, Layout.CURRENT, Layout.CLASSIC])
def test_what_a_master_may_send(layout: Layout) -> None:
    rng = Random(3)
    refused = heard = 0
    for _ in range(ROUNDS):
        if layout is Layout.OWN and rng.random() < 0.5:
            pair = Pair(HELLO)
            pair.exchange()
            end = pair.replica
            data = pair.master.encode_reply(REPLY)
            data += pair.master.encode_transfer_header(TransferHeader(0, 3, 0, 0), 40) + bytes(40)
        else:
            end = DialledEnd(credentials(), HELLO._replace(layout=layout))
            data = conversation()[1] if layout is Layout.OWN else plain_master(rng)
        frames, failed = feed(end, split(rng, damaged(rng, data)))
        refused += failed
        heard += bool(frames)
        assert all(isinstance(frame, Reply | Piece) for frame in frames)
        assert not (frames and layout is Layout.OWN and not end.is_open)
    assert refused + heard > ROUNDS // 2
    assert heard > ROUNDS // 10


def followed(**settings: object) -> Group:
    group = Group(3, ReplicationSettings(**settings))
    group.elect(1)
    group.append(group[1])
    group.settle(20)
    assert group.controller.members == {1, 2, 3}
    return group


def forged(rng: Random, group: Group, recorded: bytes) -> bytes:
    """What somebody on the port might try: offsets, ids and epochs that would count, were they proven."""
    end = group[1].machine.log.end_offset
    tries: list[Callable[[], bytes]] = [
        lambda: rocketmq_layouts.encode_ack(end),
        lambda: rocketmq_layouts.encode_classic_ack(end),
        lambda: rocketmq_layouts.HANDSHAKE.pack(1, 0, 0, rng.randrange(1, 5)) + rocketmq_layouts.encode_ack(end),
        lambda: rocketmq_layouts.HANDSHAKE_HEAD.pack(1, 0, 0, 4) + b"b2:1" + rocketmq_layouts.encode_ack(end),
        lambda: own_layout.encode_ack(group[1].machine.master_epoch, end),
        lambda: own_layout.encode_ack(99, end),
        lambda: recorded + own_layout.encode_ack(group[1].machine.master_epoch, end),
        lambda: (
            own_layout.encode_hello(Handshake(2, highest_epoch=99), b"c#b", bytes(32))
            + own_layout.PROOF_MAGIC
            + bytes(32)
        ),
        lambda: rng.randbytes(rng.randrange(200)),
    ]
    data = rng.choice(tries)()
    return damaged(rng, data) if rng.random() < 0.5 else data


def test_nobody_who_proves_nothing_makes_an_ack_count() -> None:
    group = followed()
    master = group[1]
    rng = Random(4)
    recorded = conversation()[0]
    master.driver.on_appended(master.log.append_record(b"not acknowledged"), group.now_ms)
    group.flush(master)
    before = master.machine.acknowledged_offset
    assert before < master.machine.log.end_offset
    refused = 0
    for connection in range(10_000, 10_000 + ROUNDS):
        master.driver.accepted(connection, group.now_ms, host="203.0.113.9")
        for piece in split(rng, forged(rng, group, recorded)):
            master.driver.received(connection, piece, group.now_ms)
        intruder = [peer for peer in master.machine.mastership.followers if peer.connection == connection]
        assert all(peer.stage is ConnectionStage.ACCEPTED for peer in intruder), "it got no further than the door"
        refused += not intruder
        master.driver.lost(connection, group.now_ms)
        assert master.machine.acknowledged_offset == before
        assert master.machine.role is Role.MASTER
    assert refused > ROUNDS // 2
    assert sum(master.driver.channels.refused.values()) >= refused
    assert set(master.driver.channels.refused) == {"203.0.113.9"}
    group.settle(20)
    assert master.machine.acknowledged_offset == master.machine.log.end_offset, (
        "and those who prove themselves are heard"
    )


def test_plain_peers_break_nothing_either() -> None:
    """Those who need not prove themselves may ack for an id that is theirs to claim; more than that they cannot do."""
    group = followed(plain_peers="203.0.113.9", classic_peers=True)
    master = group[1]
    rng = Random(5)
    for connection in range(10_000, 10_000 + ROUNDS):
        master.driver.accepted(connection, group.now_ms, host="203.0.113.9")
        for piece in split(rng, damaged(rng, plain_replica(rng))):
            master.driver.received(connection, piece, group.now_ms)
        if rng.random() < 0.8:
            master.driver.lost(connection, group.now_ms)
        assert master.failures == []
        assert master.machine.role is Role.MASTER
        assert len(master.machine.mastership.followers) <= group.settings.max_connections
        if rng.random() < 0.02:
            group.settle_now()
    group.settle(100)
    group.append(master)
    group.settle(200)
    assert group.outcomes[-1] is PutStatus.PUT_OK


def test_a_replica_takes_nothing_from_a_master_that_lies() -> None:
    """Whatever a proven master sends, the replica's log only ever grows at its end, within the epochs that it may have."""
    rng = Random(6)
    kept = 0
    for _ in range(60):
        group = followed()
        replica = group[2]
        (wire,) = [each for each in group.wires.values() if each.replica is replica]
        content = bytes(replica.log.data)
        accepted_end = group[1].driver.channels.accepted_end(wire.number)
        assert accepted_end is not None
        stream = b""
        for _ in range(rng.randrange(1, 5)):
            offset = rng.choice((len(content), len(content), 0, 7))
            header = TransferHeader(offset, rng.choice((1, 1, 2)), rng.choice((0, 0, 5)), 10**6)
            body = rng.randbytes(rng.randrange(60))
            stream += accepted_end.encode_transfer_header(header, len(body)) + body
        for piece in split(rng, damaged(rng, stream)):
            replica.driver.received(wire.number, piece, group.now_ms)
        assert bytes(replica.log.data[: len(content)]) == content
        assert replica.machine.confirm_offset <= replica.machine.log.end_offset == replica.log.end_offset
        assert replica.machine.epochs.last_epoch <= replica.machine.master_epoch
        assert replica.failures == []
        kept += len(replica.log.data) > len(content)
    assert kept
