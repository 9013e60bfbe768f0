"""The master's end of a replication connection: bytes of a replica in, frames out, in whichever layout it speaks (pure).

The first bytes tell the layout. A replica of ours proves itself (`proof`) before anything it says counts; the original's layouts
are taken from those whom the settings list, since nothing about them can be proven. `receive` raises ProtocolError (NotProven
among them) for whatever no correct replica sends; the end is finished then, and the connection is to be closed.

    OWN       HELLO --hello--> CHALLENGED --proof--> OPEN
    others    HELLO --the layout's own start--> OPEN
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from brokerd.replication.wire import own_layout, rocketmq_layouts
from brokerd.replication.wire.frames import Ack, FromReplica, Handshake, Layout, NewerEpoch, Reply, TransferHeader
from brokerd.replication.wire.proof import Credentials, NotProven, check_replica, prove_master
from remoting.disk import Bytes
from remoting.errors import ProtocolError

_FLAGS: Final = (0, 1, rocketmq_layouts.OURS)


class _Step(Enum):
    HELLO = "hello"
    CHALLENGED = "challenged"
    OPEN = "open"


class AcceptedEnd:
    """One accepted connection. What it has to say by itself is in `output` after each `receive`: send it first."""

    def __init__(
        self, credentials: Credentials, *, allows_rocketmq: bool = False, allows_classic: bool = False
    ) -> None:
        """`allows_rocketmq`: this peer may speak the original's layouts; `allows_classic`: the one without controllers, too."""
        self.layout: Layout | None = None
        self.output: list[bytes] = []
        self._credentials = credentials
        self._allows_rocketmq = allows_rocketmq
        self._allows_classic = allows_classic
        self._rest = b""
        self._step = _Step.HELLO
        self._hello = b""
        self._challenge = b""
        self._takes_notes = False
        self._epoch = -1  # the master's, as the reply told it
        self._padding = 0  # how many zeros may follow a seed handshake
        self._skip = 0  # how many do

    @property
    def is_open(self) -> bool:
        """The replica has proven itself, or speaks a layout in which nobody does."""
        return self._step is _Step.OPEN

    # What the replica sends

    def receive(self, data: Bytes) -> list[FromReplica]:
        """The frames in the bytes; a run of acks is given as its last."""
        if (
            not self._rest
            and self._step is _Step.OPEN
            and len(data) == own_layout.ACK.size
            and self.layout is Layout.OWN
        ):
            return [self._own_ack(data, 0)]  # what nearly every read is
        buffer = self._rest + bytes(data) if self._rest else bytes(data)
        self._rest = b""
        frames: list[FromReplica] = []
        position = 0
        while position < len(buffer):
            used = self._take(buffer, position, frames)
            if not used:
                self._rest = buffer[position:]
                break
            position += used
        return frames

    def _take(self, buffer: bytes, position: int, frames: list[FromReplica]) -> int:
        """Take one frame; how many bytes that were, 0 = not all there."""
        if self._step is _Step.HELLO:
            return self._begin(buffer, frames)
        if self._step is _Step.CHALLENGED:
            return self._take_proof(buffer[position : position + own_layout.SIGNED_BYTES], frames)
        available = len(buffer) - position
        if self.layout is Layout.OWN:
            if available < own_layout.ACK.size:
                return 0
            _add(frames, self._own_ack(buffer, position))
            return own_layout.ACK.size
        if self.layout is Layout.CLASSIC:
            return _take_classic_ack(buffer, position, frames)
        if available < rocketmq_layouts.STATE.size:
            return 0 if not self._skip else self._skip_zeros(buffer, position)
        if self._padding:
            # Zeros up to 50 bytes of address, or at once the next frame, whose state is not 0.
            if rocketmq_layouts.STATE.unpack_from(buffer, position)[0] == 0:
                self._skip = self._padding
            self._padding = 0
        if self._skip:
            return self._skip_zeros(buffer, position)
        return self._take_rocketmq(buffer, position, frames)

    def _begin(self, buffer: bytes, frames: list[FromReplica]) -> int:
        if buffer[:4] == own_layout.MAGIC[: len(buffer)]:
            return self._take_hello(buffer)
        if not self._allows_rocketmq:
            raise NotProven("a peer that does not prove itself; replication.plain_peers lists those who need not")
        layout = _detect(buffer, self._allows_classic)
        if layout is None:
            return 0
        self.layout = layout
        if layout is Layout.CLASSIC:
            self._step = _Step.OPEN
            frames.append(Handshake(-1, learner=True, layout=layout, acks_flushed=False))
            return _take_classic_ack(buffer, 0, frames)
        used = self._take_rocketmq(buffer, 0, frames)
        if used:
            self._step = _Step.OPEN
        return used

    # Our own layout

    def _take_hello(self, buffer: bytes) -> int:
        length = own_layout.hello_bytes(buffer)
        if not length or len(buffer) < length:
            return 0
        if len(buffer) > length:
            raise ProtocolError("a replica went on before it was challenged")
        self._credentials.key()
        own_layout.decode_hello(buffer, self._credentials.group)
        self.layout = Layout.OWN
        self._hello = buffer
        self._challenge = own_layout.CHALLENGE_MAGIC + self._credentials.nonce()
        self.output.append(self._challenge)
        self._step = _Step.CHALLENGED
        return length

    def _take_proof(self, proof: bytes, frames: list[FromReplica]) -> int:
        if proof[:4] != own_layout.PROOF_MAGIC[: len(proof)]:
            raise NotProven("a replica answered its challenge with something else than a proof")
        if len(proof) < own_layout.SIGNED_BYTES:
            return 0
        key = check_replica(self._credentials, self._hello, self._challenge, proof[4:])
        self.output.append(own_layout.WELCOME_MAGIC + prove_master(key, self._hello, self._challenge, proof[4:]))
        handshake = own_layout.decode_hello(self._hello, self._credentials.group)
        self._takes_notes = handshake.takes_notes
        frames.append(handshake)
        self._step = _Step.OPEN
        self._hello = self._challenge = b""
        return own_layout.SIGNED_BYTES

    def _own_ack(self, data: Bytes, position: int) -> Ack | NewerEpoch:
        state, epoch, offset = own_layout.ACK.unpack_from(data, position)
        if state != rocketmq_layouts.TRANSFER_STATE:
            raise ProtocolError(f"a replica sent a frame of state {state} where only acks (2) are due")
        if self._epoch < 0:
            raise ProtocolError("an ack before the master's epochs")
        if epoch > self._epoch:
            return NewerEpoch(epoch)
        if epoch != self._epoch:
            raise ProtocolError(f"an ack in master epoch {epoch}, which ended; this is epoch {self._epoch}")
        return Ack(offset)

    # The original's layouts

    def _take_rocketmq(self, buffer: bytes, position: int, frames: list[FromReplica]) -> int:
        available = len(buffer) - position
        (state,) = rocketmq_layouts.STATE.unpack_from(buffer, position)
        if state == rocketmq_layouts.TRANSFER_STATE:
            if available < rocketmq_layouts.ACK.size:
                return 0
            _add(frames, Ack(rocketmq_layouts.ACK.unpack_from(buffer, position)[1]))
            return rocketmq_layouts.ACK.size
        if state != rocketmq_layouts.HANDSHAKE_STATE:
            raise ProtocolError(f"a replica sent a frame of state {state}; only 1 (handshake) and 2 (ack) exist")
        if self.layout is Layout.SEED:
            return self._take_seed_handshake(buffer, position, frames)
        if available < rocketmq_layouts.HANDSHAKE.size:
            return 0
        frames.append(rocketmq_layouts.decode_handshake(buffer, position))
        return rocketmq_layouts.HANDSHAKE.size

    def _take_seed_handshake(self, buffer: bytes, position: int, frames: list[FromReplica]) -> int:
        decoded = rocketmq_layouts.decode_seed_handshake(buffer, position)
        if decoded is None:
            return 0
        handshake, used = decoded
        frames.append(handshake)
        self._padding = rocketmq_layouts.PADDED_ADDRESS_BYTES - (used - rocketmq_layouts.HANDSHAKE_HEAD.size)
        return used

    def _skip_zeros(self, buffer: bytes, position: int) -> int:
        zeros = buffer[position : position + self._skip]
        if any(zeros):
            raise ProtocolError("a handshake whose address is not padded with zeros")
        self._skip -= len(zeros)
        return len(zeros)

    # What the master sends

    def encode_reply(self, reply: Reply) -> bytes:
        """The master's epochs; from now on acks count that name its newest one."""
        self._epoch = reply.last_epoch
        if self.layout is not Layout.OWN:
            return rocketmq_layouts.encode_reply(reply)
        who = self.encode_note(own_layout.INCARNATION, reply.last_epoch, self._credentials.incarnation)
        return who + own_layout.encode_reply(reply)

    def encode_note(self, state: int, epoch: int, number: int = 0) -> bytes:
        """A note (`own_layout`); nothing for a replica that understands none."""
        return own_layout.encode_note(state, epoch, number) if self._takes_notes else b""

    def encode_transfer_header(self, header: TransferHeader, body_bytes: int) -> bytes:
        """What travels before `body_bytes` of the log; 0 = a heartbeat."""
        if self.layout is Layout.OWN:
            return own_layout.encode_transfer_header(header, body_bytes, self._epoch)
        if self.layout is Layout.CLASSIC:
            return rocketmq_layouts.encode_classic_transfer_header(header, body_bytes)
        return rocketmq_layouts.encode_transfer_header(header, body_bytes)


def _detect(buffer: bytes, allows_classic: bool) -> Layout | None:
    """Which of the original's layouts a connection begins in; None = more bytes are needed. Raises ProtocolError.

    A current and a seed handshake begin with state 1 and two flags; then the one has the high half of a broker id, which is 0,
    and the other the length of an address. A classic slave's first bytes are an offset, which could look like either.
    """
    if len(buffer) < rocketmq_layouts.STATE.size:
        return None
    (state,) = rocketmq_layouts.STATE.unpack_from(buffer)
    if state == rocketmq_layouts.HANDSHAKE_STATE:
        if len(buffer) < rocketmq_layouts.HANDSHAKE_HEAD.size:
            return None
        _, from_last_file, learner, length = rocketmq_layouts.HANDSHAKE_HEAD.unpack_from(buffer)
        if from_last_file in _FLAGS and learner in _FLAGS:
            if length == 0:
                return Layout.CURRENT
            if 0 < length <= rocketmq_layouts.PADDED_ADDRESS_BYTES:
                if len(buffer) < rocketmq_layouts.HANDSHAKE_HEAD.size + length:
                    return None
                if rocketmq_layouts.decode_address(
                    buffer[rocketmq_layouts.HANDSHAKE_HEAD.size : rocketmq_layouts.HANDSHAKE_HEAD.size + length]
                ):
                    return Layout.SEED
    if not allows_classic or state < 0:
        raise ProtocolError(f"a connection that begins with state {state} and is no handshake")
    return Layout.CLASSIC if len(buffer) >= rocketmq_layouts.CLASSIC_ACK.size else None


def _take_classic_ack(buffer: bytes, position: int, frames: list[FromReplica]) -> int:
    if len(buffer) - position < rocketmq_layouts.CLASSIC_ACK.size:
        return 0
    _add(frames, Ack(rocketmq_layouts.CLASSIC_ACK.unpack_from(buffer, position)[0]))
    return rocketmq_layouts.CLASSIC_ACK.size


def _add(frames: list[FromReplica], frame: Ack | NewerEpoch) -> None:
    """Add a frame, an ack in the place of one before it unless it falls."""
    last = frames[-1] if frames else None
    if isinstance(last, Ack) and isinstance(frame, Ack) and last.offset <= frame.offset:
        frames[-1] = frame
    else:
        frames.append(frame)
