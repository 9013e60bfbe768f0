"""The replica's end of a replication connection: a master's bytes in, frames out, in the layout that was dialled (pure).

Bodies are handed on as views of the received bytes: use them before the next `receive`, which raises ProtocolError (NotProven
among them) for whatever no correct master sends; the end is finished then, and the connection is to be closed.

    OWN        CHALLENGE --challenge--> WELCOME --welcome--> OPEN
    CURRENT, CLASSIC                                         OPEN

A RocketMQ master's labels are not believed: it may send the last bytes of an epoch under the next one's number. The epochs of its
greeting say which bytes belong to which, and a label beyond them means that it has begun another epoch since.
"""

from __future__ import annotations

from bisect import bisect_right
from enum import Enum
from typing import Final

from brokerd.replication.epochs.epoch_list import EpochEntry
from brokerd.replication.wire import own_layout, rocketmq_layouts
from brokerd.replication.wire.frames import (
    FromMaster,
    Handshake,
    Layout,
    Piece,
    Released,
    Reply,
    TransferHeader,
    TwinConnected,
)
from brokerd.replication.wire.proof import Credentials, NotProven, check_master, prove_replica
from remoting.disk import Bytes
from remoting.errors import ProtocolError

# A classic master tells no confirm offset: its replicas go by what they have themselves.
UNLIMITED: Final = 2**63 - 1


class _Step(Enum):
    CHALLENGE = "challenge"
    WELCOME = "welcome"
    OPEN = "open"


class DialledEnd:
    """One dialled connection. What it says by itself is in `output`, at the start and after each `receive`: send it."""

    def __init__(self, credentials: Credentials, handshake: Handshake) -> None:
        """`handshake.highest_epoch` is the master epoch that is followed. Raises NotProven without a secret to prove it with."""
        self.layout = handshake.layout
        self.output: list[bytes] = []
        self._credentials = credentials
        self._epoch = handshake.highest_epoch
        self._hello = self._challenge = self._proof = b""
        self._rest = b""
        self._header: TransferHeader | None = None
        self._missing = 0  # bytes of the current body that have not arrived
        self._entries: tuple[EpochEntry, ...] = ()  # a RocketMQ master's, as it greeted
        self._incarnation = 0  # of a master that told it
        self._step = _Step.OPEN
        if self.layout is Layout.OWN:
            credentials.key()
            told = handshake._replace(incarnation=credentials.incarnation)
            self._hello = own_layout.encode_hello(told, credentials.group, credentials.nonce())
            self._step = _Step.CHALLENGE
            self.output.append(self._hello)
        elif self.layout is Layout.CURRENT:
            self.output.append(rocketmq_layouts.encode_handshake(handshake))

    @property
    def is_open(self) -> bool:
        """The master showed that it knows the secret, or was dialled in a layout in which nobody does."""
        return self._step is _Step.OPEN

    @property
    def unfinished(self) -> str:
        """What the master left undone if it closes the connection now; "" = nothing."""
        if self._step is _Step.CHALLENGE:
            return "the master closed the connection without a challenge"
        if self._step is _Step.WELCOME:
            return "the master did not accept our proof: give both brokers the same --cluster-secret"
        return ""

    # What the master sends

    def receive(self, data: Bytes) -> list[FromMaster]:
        """The frames in the bytes."""
        view = memoryview(self._rest + bytes(data) if self._rest else data)
        self._rest = b""
        position, length = 0, len(view)
        frames: list[FromMaster] = []
        while position < length:
            used = self._take_body(view, position, frames) if self._missing else self._take(view, position, frames)
            if not used:
                self._rest = bytes(view[position:])
                break
            position += used
        return frames

    def _take_body(self, view: memoryview, position: int, frames: list[FromMaster]) -> int:
        header = self._header
        assert header is not None
        body = view[position : position + self._missing]
        if self._entries:
            header, body = self._label(header, body)
        frames.append(Piece(header, body))
        self._missing -= len(body)
        if self._missing:
            self._header = header._replace(offset=header.offset + len(body))
        return len(body)

    def _take(self, view: memoryview, position: int, frames: list[FromMaster]) -> int:
        """Take what stands before bodies; how many bytes that were, 0 = not all there."""
        if self._step is _Step.CHALLENGE:
            return self._take_challenge(bytes(view[position : position + own_layout.CHALLENGE_BYTES]))
        if self._step is _Step.WELCOME:
            return self._take_welcome(bytes(view[position : position + own_layout.SIGNED_BYTES]))
        available = len(view) - position
        if self.layout is Layout.CLASSIC:
            if available < rocketmq_layouts.CLASSIC_TRANSFER.size:
                return 0
            offset, body_bytes = rocketmq_layouts.CLASSIC_TRANSFER.unpack_from(view, position)
            self._begin_body(TransferHeader(offset, 0, -1, UNLIMITED), body_bytes, frames)
            return rocketmq_layouts.CLASSIC_TRANSFER.size
        if available < rocketmq_layouts.STATE.size:
            return 0
        (state,) = rocketmq_layouts.STATE.unpack_from(view, position)
        if state == rocketmq_layouts.TRANSFER_STATE:
            return self._take_transfer(view, position, available, frames)
        if state == rocketmq_layouts.HANDSHAKE_STATE:
            return self._take_reply(view, position, available, frames)
        if state in own_layout.NOTES and self.layout is Layout.OWN:
            return self._take_note(view, position, available, frames)
        raise ProtocolError(f"a master sent a frame of state {state}; only 1 (handshake) and 2 (transfer) exist")

    # The proof

    def _take_challenge(self, challenge: bytes) -> int:
        if challenge[:4] != own_layout.CHALLENGE_MAGIC[: len(challenge)]:
            raise NotProven("the master answered with something else than a challenge")
        if len(challenge) < own_layout.CHALLENGE_BYTES:
            return 0
        self._challenge = challenge
        self._proof = prove_replica(self._credentials.key(), self._hello, challenge)
        self.output.append(own_layout.PROOF_MAGIC + self._proof)
        self._step = _Step.WELCOME
        return len(challenge)

    def _take_welcome(self, welcome: bytes) -> int:
        if welcome[:4] != own_layout.WELCOME_MAGIC[: len(welcome)]:
            raise NotProven("the master answered a proof with something else than its own")
        if len(welcome) < own_layout.SIGNED_BYTES:
            return 0
        check_master(self._credentials.key(), self._hello, self._challenge, self._proof, welcome[4:])
        self._step = _Step.OPEN
        self._hello = self._challenge = self._proof = b""
        return len(welcome)

    # Frames

    def _take_note(self, view: memoryview, position: int, available: int, frames: list[FromMaster]) -> int:
        if available < own_layout.NOTE.size:
            return 0
        state, epoch, number = own_layout.NOTE.unpack_from(view, position)
        if state == own_layout.INCARNATION:
            self._incarnation = number
        elif state == own_layout.TWIN:
            frames.append(TwinConnected())
        elif epoch != self._epoch:
            raise ProtocolError(f"a release by the master of epoch {epoch} where epoch {self._epoch} is followed")
        else:
            frames.append(Released())
        return own_layout.NOTE.size

    def _take_reply(self, view: memoryview, position: int, available: int, frames: list[FromMaster]) -> int:
        head = own_layout.REPLY if self.layout is Layout.OWN else rocketmq_layouts.REPLY
        if available < head.size:
            return 0
        _, body_bytes, end_offset, last_epoch, *more = head.unpack_from(view, position)
        entry_bytes = rocketmq_layouts.REPLY_ENTRY.size
        if body_bytes % entry_bytes or not 0 <= body_bytes <= rocketmq_layouts.MAX_EPOCHS_READ * entry_bytes:
            raise ProtocolError(f"a handshake reply with {body_bytes} bytes of epochs")
        total: int = head.size + body_bytes
        if available < total:
            return 0
        entries = rocketmq_layouts.decode_epochs(view[position + head.size : position + total], end_offset, last_epoch)
        min_offset = more[0] if more else -1
        if more and not 0 <= min_offset <= end_offset:
            raise ProtocolError(f"a log that begins at {min_offset} and ends at {end_offset}")
        if self.layout is Layout.CURRENT:
            self._entries = entries
        frames.append(Reply(end_offset, last_epoch, entries, min_offset, self._incarnation))
        return total

    def _take_transfer(self, view: memoryview, position: int, available: int, frames: list[FromMaster]) -> int:
        layout = own_layout.TRANSFER if self.layout is Layout.OWN else rocketmq_layouts.TRANSFER
        if available < layout.size:
            return 0
        _, body_bytes, offset, epoch, epoch_start, confirm_offset, *more = layout.unpack_from(view, position)
        if more and more[0] != self._epoch:
            raise ProtocolError(f"a frame of master epoch {more[0]} where epoch {self._epoch} is followed")
        self._begin_body(TransferHeader(offset, epoch, epoch_start, confirm_offset), body_bytes, frames)
        return layout.size

    def _begin_body(self, header: TransferHeader, body_bytes: int, frames: list[FromMaster]) -> None:
        if not 0 <= body_bytes <= rocketmq_layouts.MAX_BODY_BYTES:
            raise ProtocolError(f"a transfer of {body_bytes} bytes; the limit is {rocketmq_layouts.MAX_BODY_BYTES}")
        self._header = header
        self._missing = body_bytes
        if not body_bytes:
            frames.append(Piece(header, b""))

    def _label(self, header: TransferHeader, body: memoryview) -> tuple[TransferHeader, memoryview]:
        """The part of a body that one epoch wrote, under that epoch."""
        entries = self._entries
        if header.epoch > entries[-1].epoch:
            raise ProtocolError(f"bytes of epoch {header.epoch}, which the master did not have when it greeted")
        index = bisect_right(entries, header.offset, key=lambda entry: entry.start_offset) - 1
        if index < 0:
            raise ProtocolError(f"bytes for {header.offset}, before the master's first epoch")
        entry = entries[index]
        if index + 1 < len(entries):
            body = body[: entries[index + 1].start_offset - header.offset]
        return header._replace(epoch=entry.epoch, epoch_start=entry.start_offset), body

    # What the replica sends

    def encode_ack(self, offset: int) -> bytes:
        if self.layout is Layout.OWN:
            return own_layout.encode_ack(self._epoch, offset)
        if self.layout is Layout.CLASSIC:
            return rocketmq_layouts.encode_classic_ack(offset)
        return rocketmq_layouts.encode_ack(offset)
