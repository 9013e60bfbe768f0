"""The original's bytes, as documented."""

from __future__ import annotations

import pytest

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.wire import rocketmq_layouts
from brokerd.replication.wire.frames import Handshake, Layout, Reply, TransferHeader
from remoting.errors import ProtocolError


def test_the_handshake_is_the_documented_sixteen_bytes() -> None:
    raw = bytes.fromhex("00000001 0000 0001 0000000000000002")
    assert rocketmq_layouts.decode_handshake(raw) == Handshake(
        2, learner=True, layout=Layout.CURRENT, acks_flushed=False
    )


def test_a_flag_is_set_by_a_one_only() -> None:
    raw = bytes.fromhex("00000001 0100 0002 0000000000000002")
    assert rocketmq_layouts.decode_handshake(raw) == Handshake(2, layout=Layout.CURRENT, acks_flushed=False)


@pytest.mark.parametrize(
    ("handshake", "written"),
    [
        (Handshake(2), "00000001 4c42 0000 0000000000000002"),
        (Handshake(2, from_last_file=True), "00000001 0001 4c42 0000000000000002"),
        (Handshake(2, learner=True), "00000001 4c42 0001 0000000000000002"),
        (Handshake(2, from_last_file=True, learner=True), "00000001 0001 0001 0000000000000002"),
    ],
)
def test_ours_mark_their_plain_handshake_where_the_original_reads_no(handshake: Handshake, written: str) -> None:
    assert rocketmq_layouts.encode_handshake(handshake) == bytes.fromhex(written)


def test_ours_are_not_taken_for_the_original() -> None:
    with pytest.raises(ProtocolError, match="without proving itself"):
        rocketmq_layouts.decode_handshake(rocketmq_layouts.encode_handshake(Handshake(2)))


def test_the_other_layouts() -> None:
    assert rocketmq_layouts.encode_ack(0x1122) == bytes.fromhex("00000002 0000000000001122")
    assert rocketmq_layouts.encode_reply(Reply(16, 1, (EpochEntry(1, 2),))) == bytes.fromhex(
        "00000001 0000000c 0000000000000010 00000001 00000001 0000000000000002"
    )
    header = TransferHeader(1, 2, 3, 4)
    assert rocketmq_layouts.encode_transfer_header(header, 5) == bytes.fromhex(
        "00000002 00000005 0000000000000001 00000002 0000000000000003 0000000000000004"
    )
    assert rocketmq_layouts.encode_classic_ack(0x1122) == bytes.fromhex("0000000000001122")
    assert rocketmq_layouts.encode_classic_transfer_header(header, 5) == bytes.fromhex("0000000000000001 00000005")


def test_a_long_epoch_list_is_sent_as_its_newest_thousand() -> None:
    entries = tuple(EpochEntry(epoch, epoch) for epoch in range(1, 2001))
    raw = rocketmq_layouts.encode_reply(Reply(9999, 2000, entries))
    assert len(raw) == 20 + 12 * 1000
    assert rocketmq_layouts.decode_epochs(memoryview(raw)[20:], 9999, 2000) == entries[-1000:]


@pytest.mark.parametrize("address", ["10.0.0.7:10911", "b:1", "broker-a.example:10911", "x" * 44 + ":10911"])
def test_an_address_is_host_and_port(address: str) -> None:
    assert rocketmq_layouts.decode_address(address.encode()) == address


@pytest.mark.parametrize("raw", [b"", b"\0", b"host", b"host:", b":x", b"\xff\xff:1", b"a\0b:1", "höst:1".encode()])
def test_anything_else_is_not(raw: bytes) -> None:
    assert rocketmq_layouts.decode_address(raw) == ""
