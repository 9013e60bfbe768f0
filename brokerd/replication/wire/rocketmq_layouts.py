"""The bytes that the original has spoken between master and slave, one function per frame (pure).

Integers are big-endian. `current` belongs to controllers with persistent broker ids:

    slave -> master    handshake  state=1 (4)  from_last_file (2)  learner (2)  broker id (8)
                       ack        state=2 (4)  offset (8)
    master -> slave    reply      state=1 (4)  body size (4)  log end (8)  last epoch (4)  then n x { epoch (4)  start (8) }
                       transfer   state=2 (4)  body size (4)  offset (8)  epoch (4)  epoch start (8)  confirm offset (8)  body

`seed` differs in the handshake alone: after the flags come the length of the slave's address (4) and the address, which some
builds padded with zeros to 50 bytes. `classic` knows no controllers, no states and no epochs:

    slave -> master    ack        offset (8)
    master -> slave    transfer   offset (8)  body size (4)  body

A body size of 0 makes a transfer a heartbeat.
"""

from __future__ import annotations

import struct
from typing import Final

from brokerd.replication.epochs.epoch_list import EpochEntry, is_increasing
from brokerd.replication.wire.frames import Handshake, Layout, Reply, TransferHeader
from remoting.errors import ProtocolError

HANDSHAKE_STATE: Final = 1
TRANSFER_STATE: Final = 2  # the other ordinals (READY 0, SUSPEND 3, SHUTDOWN 4) never travel

MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_BODY_BYTES_SENT: Final = 1 << 20  # header and body must fit into a slave's buffer of 4 MiB
MAX_EPOCHS_SENT: Final = 1000  # what a slave's and a master's buffer hold
MAX_EPOCHS_READ: Final = 10_000
PADDED_ADDRESS_BYTES: Final = 50

# A replica of ours that speaks plainly to a master which did not answer otherwise writes this into a flag that it has not set:
# the original reads anything but 1 as "no", and a master of ours then knows that this peer can prove itself and must.
OURS: Final = 0x4C42

STATE: Final = struct.Struct(">i")
HANDSHAKE: Final = struct.Struct(">ihhq")
HANDSHAKE_HEAD: Final = struct.Struct(">ihhi")  # up to what tells the current layout from the seed's
ACK: Final = struct.Struct(">iq")
REPLY: Final = struct.Struct(">iiqi")
REPLY_ENTRY: Final = struct.Struct(">iq")
TRANSFER: Final = struct.Struct(">iiqiqq")
CLASSIC_ACK: Final = struct.Struct(">q")
CLASSIC_TRANSFER: Final = struct.Struct(">qi")


def encode_handshake(handshake: Handshake) -> bytes:
    """The current layout's handshake, with the mark of a replica of ours."""
    flags = [int(handshake.from_last_file), int(handshake.learner)]
    if 0 in flags:
        flags[flags.index(0)] = OURS
    return HANDSHAKE.pack(HANDSHAKE_STATE, *flags, handshake.broker_id)


def encode_ack(offset: int) -> bytes:
    return ACK.pack(TRANSFER_STATE, offset)


def encode_classic_ack(offset: int) -> bytes:
    return CLASSIC_ACK.pack(offset)


def encode_reply(reply: Reply) -> bytes:
    """The reply with the newest entries: a slave that shares only older ones finds no epoch in common."""
    entries = reply.entries[-MAX_EPOCHS_SENT:]
    head = REPLY.pack(HANDSHAKE_STATE, REPLY_ENTRY.size * len(entries), reply.end_offset, reply.last_epoch)
    return head + b"".join(REPLY_ENTRY.pack(*entry) for entry in entries)


def encode_transfer_header(header: TransferHeader, body_bytes: int) -> bytes:
    return TRANSFER.pack(TRANSFER_STATE, body_bytes, *header)


def encode_classic_transfer_header(header: TransferHeader, body_bytes: int) -> bytes:
    return CLASSIC_TRANSFER.pack(header.offset, body_bytes)


def decode_handshake(buffer: bytes, position: int = 0) -> Handshake:
    """The current layout's handshake, all of which is there. Raises ProtocolError."""
    _, from_last_file, learner, broker_id = HANDSHAKE.unpack_from(buffer, position)
    if OURS in (from_last_file, learner):
        raise ProtocolError("a replica of this cluster came without proving itself; it will come again")
    return Handshake(broker_id, from_last_file == 1, learner == 1, Layout.CURRENT, acks_flushed=False)


def decode_seed_handshake(buffer: bytes, position: int) -> tuple[Handshake, int] | None:
    """The seed's handshake and its length without padding; None = not all there. Raises ProtocolError."""
    start = position + HANDSHAKE_HEAD.size
    if len(buffer) < start:
        return None
    _, from_last_file, _, length = HANDSHAKE_HEAD.unpack_from(buffer, position)
    if not 0 < length <= PADDED_ADDRESS_BYTES:
        raise ProtocolError(f"a handshake with an address of {length} bytes; 1 to {PADDED_ADDRESS_BYTES} are allowed")
    if len(buffer) < start + length:
        return None
    address = decode_address(buffer[start : start + length])
    if not address:
        raise ProtocolError("a handshake whose address is not host:port")
    handshake = Handshake(-1, from_last_file == 1, True, Layout.SEED, acks_flushed=False, address=address)
    return handshake, HANDSHAKE_HEAD.size + length


def decode_address(raw: bytes) -> str:
    """The address in a seed handshake, "" when the bytes are none."""
    text = raw.decode("ascii", "replace")
    host, colon, port = text.rpartition(":")
    return text if colon and host.isascii() and host.isprintable() and port.isdecimal() else ""


def decode_epochs(view: memoryview, end_offset: int, last_epoch: int) -> tuple[EpochEntry, ...]:
    """The entries of a reply whose body is `view`. Raises ProtocolError when they contradict each other or the header."""
    entries = tuple(EpochEntry(*pair) for pair in REPLY_ENTRY.iter_unpack(view))
    if end_offset < 0 or not is_increasing(entries) or (entries[-1].epoch if entries else -1) != last_epoch:
        raise ProtocolError("a handshake reply whose epochs contradict each other")
    if entries and entries[-1].start_offset > end_offset:
        raise ProtocolError("a handshake reply with an epoch that begins beyond the end of the log")
    return entries
