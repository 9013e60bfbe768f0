"""The bytes between two of our own brokers (pure).

Integers are big-endian. First the proof (`proof`), then frames like the original's current ones, with what it does not say:

    replica -> master   hello       "LBHA" (4)  version (2)  flags (2)  broker id (8)  incarnation (8)  highest epoch (4)
                                    random (32)  group's length (2)  group
    master -> replica   challenge   "LBHC" (4)  random (32)
    replica -> master   proof       "LBHP" (4)  HMAC (32)
    master -> replica   welcome     "LBHW" (4)  HMAC (32)

    replica -> master   ack         state=2 (4)  followed epoch (4)  offset (8)
    master -> replica   note        state=3 to 5 (4)  master epoch (4)  number (8)
                        reply       state=1 (4)  body size (4)  log end (8)  last epoch (4)  log begin (8)
                                    then n x { epoch (4)  start (8) }
                        transfer    state=2 (4)  body size (4)  offset (8)  epoch (4)  epoch start (8)  confirm offset (8)
                                    master epoch (4)  body

Flags of a hello: 1 = start from the last file, 2 = learner, 4 = an ack means that the bytes are on disk, 8 = it asks to be let go
of, to drop its log, 16 = it understands notes, 32 = it does not copy a record's checksum with its message. Masters of before pass
over the last three.

Notes, each only to a replica that understands them: 3 = the replica is let go of and may drop its log; 4 = which start of the
master this is, its incarnation as the number; 5 = another process with the replica's broker id is connected: refused.
"""

from __future__ import annotations

import struct
from typing import Final

from brokerd.replication.wire.frames import Handshake, Layout, Reply, TransferHeader
from brokerd.replication.wire.proof import NONCE_BYTES, PROOF_BYTES, NotProven
from brokerd.replication.wire.rocketmq_layouts import HANDSHAKE_STATE, MAX_EPOCHS_READ, REPLY_ENTRY, TRANSFER_STATE
from remoting.errors import ProtocolError

MAGIC: Final = b"LBHA"
CHALLENGE_MAGIC: Final = b"LBHC"
PROOF_MAGIC: Final = b"LBHP"
WELCOME_MAGIC: Final = b"LBHW"
VERSION: Final = 1
MAX_GROUP_BYTES: Final = 512

HELLO: Final = struct.Struct(f">4sHHqqi{NONCE_BYTES}sH")
CHALLENGE_BYTES: Final = 4 + NONCE_BYTES
SIGNED_BYTES: Final = 4 + PROOF_BYTES  # a proof or a welcome
ACK: Final = struct.Struct(">iiq")
REPLY: Final = struct.Struct(">iiqiq")
TRANSFER: Final = struct.Struct(">iiqiqqi")

_FROM_LAST_FILE: Final = 1
_LEARNER: Final = 2
_ACKS_FLUSHED: Final = 4
_STARTS_ANEW: Final = 8
_TAKES_NOTES: Final = 16
_KNOWS_CHECKSUMS: Final = 32

NOTE: Final = struct.Struct(">iiq")
RELEASED: Final = 3
INCARNATION: Final = 4
TWIN: Final = 5
NOTES: Final = (RELEASED, INCARNATION, TWIN)


def encode_hello(handshake: Handshake, group: bytes, nonce: bytes) -> bytes:
    flags = (
        _FROM_LAST_FILE * handshake.from_last_file
        | _LEARNER * handshake.learner
        | _ACKS_FLUSHED * handshake.acks_flushed
        | _STARTS_ANEW * handshake.starts_anew
        | _TAKES_NOTES
        | _KNOWS_CHECKSUMS * handshake.knows_checksums
    )
    return (
        HELLO.pack(
            *(MAGIC, VERSION, flags, handshake.broker_id, handshake.incarnation, handshake.highest_epoch),
            *(nonce, len(group)),
        )
        + group
    )


def hello_bytes(buffer: bytes) -> int:
    """How long the hello at the start of the buffer is; 0 = not known yet. Raises ProtocolError."""
    if len(buffer) < HELLO.size:
        return 0
    group_bytes: int = HELLO.unpack_from(buffer)[-1]
    if group_bytes > MAX_GROUP_BYTES:
        raise ProtocolError(f"a hello with a group name of {group_bytes} bytes; the limit is {MAX_GROUP_BYTES}")
    return HELLO.size + group_bytes


def decode_hello(hello: bytes, group: bytes) -> Handshake:
    """A whole hello of a replica of `group`. Raises ProtocolError."""
    _, version, flags, broker_id, incarnation, highest_epoch, _, _ = HELLO.unpack_from(hello)
    if version != VERSION:
        raise ProtocolError(f"a replica speaks version {version} of the replication protocol, this broker {VERSION}")
    if hello[HELLO.size :] != group:
        raise NotProven("a replica of another group or cluster; look at its --cluster, --name and --controllers")
    return Handshake(
        broker_id,
        bool(flags & _FROM_LAST_FILE),
        bool(flags & _LEARNER),
        Layout.OWN,
        incarnation,
        highest_epoch,
        bool(flags & _ACKS_FLUSHED),
        starts_anew=bool(flags & _STARTS_ANEW),
        takes_notes=bool(flags & _TAKES_NOTES),
        knows_checksums=bool(flags & _KNOWS_CHECKSUMS),
    )


def encode_ack(epoch: int, offset: int) -> bytes:
    return ACK.pack(TRANSFER_STATE, epoch, offset)


def encode_note(state: int, epoch: int, number: int = 0) -> bytes:
    return NOTE.pack(state, epoch, number)


def encode_reply(reply: Reply) -> bytes:
    entries = reply.entries[-MAX_EPOCHS_READ:]
    size = REPLY_ENTRY.size * len(entries)
    head = REPLY.pack(HANDSHAKE_STATE, size, reply.end_offset, reply.last_epoch, reply.min_offset)
    return head + b"".join(REPLY_ENTRY.pack(*entry) for entry in entries)


def encode_transfer_header(header: TransferHeader, body_bytes: int, master_epoch: int) -> bytes:
    return TRANSFER.pack(TRANSFER_STATE, body_bytes, *header, master_epoch)
