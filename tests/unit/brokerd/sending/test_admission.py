"""Signed sends by the buffer: stored is what the guard lets in of requests one by one, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, Final, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brokerd.processors.sending.admission import Admission
from remoting import codes, frame
from remoting.access.model import ALL, CUSTOM, DENY, PUB, AccessState, Entry, User, resource
from remoting.access.sealing import seal
from remoting.access.signature import ACCESS_KEY, SIGNATURE, Credentials
from remoting.frame import Command
from remoting.guarding.guard import AccessSettings, Guard
from remoting.transport.connection import RemotingConnection
from remoting.transport.limits import ConnectionLimits
from tests.support.client_bytes import encode_compact
from tests.support.kernels import native_kernels
from tests.support.native_library import native_library
from tests.unit.brokerd.sending.test_boundary import Transport
from tests.unit.brokerd.sending.test_send import TOPICS, Broker, request
from tests.unit.remoting.guarding.test_guard import component

SECRET: Final = b"0123456789abcdef"
ECHO: Final = 900
FROM: Final = "10.0.0.1"
CREDENTIALS: Final = {name: Credentials(name, f"{name}'s secret".encode()) for name in ("ann", "bob", "off", "none")}
_LONG: Final = {"a": "producerGroup", "b": "topic", "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag"}


def user(name: str, secret: str = "", status: str = "enable") -> User:
    return User(name, seal(SECRET, name, secret or f"{name}'s secret", name.encode().ljust(12)[:12]), "Normal", status)


def state(**changes: Any) -> AccessState:
    """`ann` may send to T from here; `bob` to everything but T; `off` is disabled; `none` does not exist."""
    users = {each.name: each for each in (user("ann"), user("bob"), user("off", status="disable"))}
    acls = {
        "ann": {CUSTOM: (Entry(resource("Topic:T"), (PUB,), "Allow", (FROM,)),)},
        "bob": {
            CUSTOM: (Entry(resource("Topic:*"), (ALL,), "Allow"), Entry(resource("Topic:T"), (ALL,), DENY)),
        },
        "off": {CUSTOM: (Entry(resource("*"), (ALL,), "Allow"),)},
    }
    return replace(AccessState(1, users, acls), **changes)


class Peer:
    """A connection to a broker's senders behind a guard, of somebody who has shown who he is."""

    def __init__(self, *, offers: bool, authorization: bool = True) -> None:
        library = native_library()
        self.guard = Guard(
            AccessSettings(authentication=True, authorization=authorization), "c", (SECRET,), lambda: 1_767_268_800_000
        )
        self.guard.update(state())
        topic = {name: replace(config, name=name) for name, config in _topics().items()}
        with native_kernels(library):
            self.broker = broker = Broker(topics=topic)
        self.others: list[int] = []
        processor = broker.processor
        self.admission = Admission(self.guard, library)
        processor.admit_by(self.admission)
        handlers = self.guard.protect(
            {
                codes.SEND_MESSAGE: processor.handle_long_names,
                codes.SEND_MESSAGE_V2: processor.handle,
                codes.SEND_BATCH_MESSAGE: processor.handle,
                ECHO: self.echo,
            }
        )
        self.transport = Transport()
        self.connection = RemotingConnection(handlers, ConnectionLimits(), taker=processor if offers else None)
        self.connection.connection_made(cast(asyncio.Transport, self.transport))
        self.connection.prove("ann")

    def echo(self, connection: RemotingConnection, requests: Sequence[Command]) -> None:
        for each in requests:
            self.others.append(each.opaque)
            connection.respond(each)

    def receive(self, *frames: bytes) -> None:
        self.connection.data_received(b"".join(frames))

    def stored(self) -> int:
        return sum(self.broker.store.queue_offsets.table.values())

    async def finish(self) -> dict[int, int]:
        """Let everything be answered: codes by the requests' numbers."""
        for _ in range(200):
            self.broker.next_turn()
            self.broker.acknowledger.complete()
            await asyncio.sleep(0)
            if not self.broker.turn and not self.connection.offered:
                break
        return {answer.opaque: answer.code for answer in self.transport.answers()}


def _topics() -> dict[str, Any]:
    return {**TOPICS, "U": TOPICS["T"]}


def signed(command: Command, name: str = "ann") -> Command:
    command.ext = CREDENTIALS[name].sign(command.ext, command.body)
    return command


def encoded(command: Command) -> bytes:
    return frame.encode_request(command.code, command.opaque, command.ext, command.body, oneway=command.is_oneway)


def send(opaque: int, name: str = "ann", body: bytes = b"hello", **changes: str) -> bytes:
    return encoded(signed(request(opaque, body, **changes), name))


def _tampered(opaque: int, change: Callable[[Command], None]) -> bytes:
    command = signed(request(opaque))
    change(command)
    return encoded(command)


def _sign_nothing(command: Command) -> None:
    del command.ext[SIGNATURE]


def _is_nobody(command: Command) -> None:
    del command.ext[ACCESS_KEY]


def _with(**changes: str) -> Callable[[Command], None]:
    return lambda command: command.ext.update(changes)


def _other_body(command: Command) -> None:
    command.body = b"hellO"


def doubled(opaque: int, name: str, first: str, last: str) -> bytes:
    """A field twice in the header, signed as if it said what it says last, which is what counts."""
    command = signed(request(opaque, **({name: last} if name not in (ACCESS_KEY, SIGNATURE) else {})))
    data = encoded(command)
    header = data[8 : 8 + int.from_bytes(data[5:8])].replace(
        b'"extFields":{', f'"extFields":{{"{name}":"{first}",'.encode()
    )
    return (4 + len(header) + len(command.body)).to_bytes(4) + len(header).to_bytes(4) + header + bytes(command.body)


def long_names(opaque: int, topic: str) -> bytes:
    short = request(opaque, b=topic).ext
    return encoded(signed(Command(codes.SEND_MESSAGE, opaque, {_LONG[each]: short[each] for each in _LONG}, b"hello")))


# What is refused, or let in, by its name; each makes a frame of a request's number
REFUSED: Final[dict[str, Callable[[int], bytes]]] = {
    "no signature": lambda n: _tampered(n, _sign_nothing),
    "an empty signature": lambda n: _tampered(n, _with(Signature="")),
    "another signature": lambda n: _tampered(n, _with(Signature="A" * 27 + "=")),
    "a longer signature": lambda n: _tampered(n, _with(Signature="A" * 40)),
    "nobody": lambda n: _tampered(n, _is_nobody),
    "somebody else": lambda n: _tampered(n, _with(AccessKey="bob")),
    "another topic": lambda n: _tampered(n, _with(b="U")),
    "another body": lambda n: _tampered(n, _other_body),
    "another queue": lambda n: _tampered(n, _with(e="2")),
    "more fields": lambda n: _tampered(n, _with(z="1")),
    "a topic of others": lambda n: send(n, b="U"),
    "a topic of others, long names": lambda n: long_names(n, "U"),
    "a topic that is denied": lambda n: send(n, "bob"),
    "who is disabled": lambda n: send(n, "off"),
    "who is not there": lambda n: send(n, "none"),
    "the brokers' topic": lambda n: send(n, "bob", b="RMQ_SYS_TRANS_HALF_TOPIC"),
    "a retry topic": lambda n: send(n, b="%RETRY%g"),
    "no topic": lambda n: send(n, b=""),
    "a name twice, the last is bad": lambda n: doubled(n, "b", "T", "U"),
    "two keys, the last is bad": lambda n: _twice(n, ACCESS_KEY, "none"),
    "two signatures, the last is bad": lambda n: _twice(n, SIGNATURE, "A" * 28),
}
LET_IN: Final[dict[str, Callable[[int], bytes]]] = {
    "ordinary": send,
    "bob's own": lambda n: send(n, "bob", b="U"),
    "long names": lambda n: long_names(n, "T"),
    "compact": lambda n: encode_compact(signed(request(n))),
    "from its end": lambda n: encoded(_turned(signed(request(n)))),
    "a name twice, the last counts": lambda n: doubled(n, "b", "U", "T"),
    "two signatures, the last counts": lambda n: doubled(n, SIGNATURE, "A" * 28, ""),
    "an empty field": lambda n: send(n, z=""),
    "a half message": lambda n: send(n, i="UNIQ_KEY\x01K\x02TRAN_MSG\x01true\x02PGROUP\x01g\x02"),
    "a property twice": lambda n: send(n, i="UNIQ_KEY\x01K\x02a\x011\x02a\x012\x02"),
    "many fields": lambda n: send(n, **{f"n{each}": "v" for each in range(40)}),
    "what 4.9.3 leaves out": lambda n: send(n, _UNIQUE_KEY_QUERY="true"),
    "another request": lambda n: encoded(signed(Command(ECHO, n, {}, b""), "bob")),
}


def _twice(opaque: int, name: str, last: str) -> bytes:
    """A field twice in the header of what is signed; the one that does not fit is the last."""
    command = signed(request(opaque))
    data = encoded(command)
    header = data[8 : 8 + int.from_bytes(data[5:8])].replace(b'},"flag"', f',"{name}":"{last}"}},"flag"'.encode())
    return (4 + len(header) + len(command.body)).to_bytes(4) + len(header).to_bytes(4) + header + bytes(command.body)


def _receive(peer: Peer, frames: Sequence[bytes], in_buffer: int) -> None:
    """So many of the frames in each read; the loops in C are asked to take them, until they took nothing of one."""
    for at in range(0, len(frames), in_buffer):
        peer.receive(*frames[at : at + in_buffer])
        assert peer.connection.offered or at, "the loops in C were asked"
        peer.broker.next_turn()


def _turned(command: Command) -> Command:
    command.ext = dict(reversed(command.ext.items()))
    return command


@pytest.mark.parametrize("kind", REFUSED)
@pytest.mark.parametrize("at", [0, 1, 40, 63])
@pytest.mark.parametrize("in_buffer", [64, 5, 2, 1])
async def test_one_that_is_refused_among_64(kind: str, at: int, in_buffer: int) -> None:
    peer = Peer(offers=True)
    _receive(peer, [REFUSED[kind](n) if n == at else send(n) for n in range(64)], in_buffer)
    answers = await peer.finish()
    assert answers == {n: codes.NO_PERMISSION if n == at else codes.SUCCESS for n in range(64)}
    assert peer.stored() == 63
    assert peer.guard.refused == 1


@pytest.mark.parametrize("kind", LET_IN)
@pytest.mark.parametrize("in_buffer", [64, 5, 2, 1])
async def test_one_of_another_kind_among_64(kind: str, in_buffer: int) -> None:
    peer = Peer(offers=True, authorization=kind != "another request")
    _receive(peer, [LET_IN[kind](n) if n == 30 else send(n) for n in range(64)], in_buffer)
    answers = await peer.finish()
    assert answers == dict.fromkeys(range(64), codes.SUCCESS)
    assert peer.stored() == (63 if kind == "another request" else 64)
    assert peer.guard.refused == 0


def _user_gone(peer: Peer) -> None:
    known = state()
    peer.guard.update(replace(known, users={name: each for name, each in known.users.items() if name != "ann"}))


def _secret_changed(peer: Peer) -> None:
    known = state()
    peer.guard.update(replace(known, users={**known.users, "ann": user("ann", "new")}))


def _disabled(peer: Peer) -> None:
    known = state()
    peer.guard.update(replace(known, users={**known.users, "ann": user("ann", status="disable")}))


def _not_allowed(peer: Peer) -> None:
    peer.guard.update(replace(state(), acls={}))


@pytest.mark.parametrize("change", [_user_gone, _secret_changed, _disabled, _not_allowed])
@pytest.mark.parametrize("is_before_turn", [False, True], ids=["between buffers", "while a buffer waits"])
async def test_what_changes_counts_for_the_next_frame(change: Callable[[Peer], None], is_before_turn: bool) -> None:
    peer = Peer(offers=True)
    peer.receive(send(1))
    peer.broker.next_turn()
    assert peer.stored() == 1
    if is_before_turn:
        peer.receive(send(2))
        assert peer.connection.offered
        change(peer)
    else:
        change(peer)
        peer.receive(send(2))
    assert await peer.finish() == {1: codes.SUCCESS, 2: codes.NO_PERMISSION}
    assert peer.stored() == 1
    peer.guard.update(state())
    peer.receive(send(3))
    assert (await peer.finish())[3] == codes.SUCCESS


async def test_a_permission_for_an_address_is_of_no_use_at_another() -> None:
    peer = Peer(offers=True)
    peer.receive(send(1))
    await peer.finish()
    other = Peer(offers=True)
    other.connection.peer_host = "10.0.0.7"
    other.broker.processor.admit_by(peer.admission)  # which remembers the first
    other.receive(send(1), send(2))
    assert await other.finish() == {1: codes.NO_PERMISSION, 2: codes.NO_PERMISSION}
    assert other.stored() == 0


async def test_a_component_s_request_is_not_used_up_by_a_look() -> None:
    peer = Peer(offers=True)
    sign = component(SECRET).signer([peer.connection.own_address])
    theirs = request(2)
    data = frame.encode_request(theirs.code, 2, sign(theirs.code, theirs.ext, theirs.body, False), theirs.body)
    peer.receive(send(1), data, send(3))
    assert await peer.finish() == {1: codes.SUCCESS, 2: codes.SUCCESS, 3: codes.SUCCESS}
    peer.receive(send(4), data)
    assert (await peer.finish())[2] == codes.NO_PERMISSION, "the second time"


async def test_nothing_is_taken_undecoded_of_who_has_not_shown_who_he_is() -> None:
    peer = Peer(offers=True)
    peer.connection._is_proven, peer.connection.user = False, ""
    peer.receive(send(1))
    assert not peer.connection.offered
    peer.broker.next_turn()
    peer.receive(send(2))
    assert peer.connection.offered
    assert await peer.finish() == {1: codes.SUCCESS, 2: codes.SUCCESS}


async def test_whose_the_connection_is_changes_with_who_sends() -> None:
    peer = Peer(offers=True)
    peer.receive(send(1), send(2, "bob", b="U"))
    peer.broker.next_turn()
    assert peer.connection.user == "bob"
    peer.receive(REFUSED["who is disabled"](3))
    peer.broker.next_turn()
    assert peer.connection.user == "bob"


async def test_a_broken_frame_behind_good_ones_closes_the_connection_behind_them() -> None:
    peer = Peer(offers=True)
    closed: list[bool] = []
    peer.transport.close = lambda: closed.append(True)  # type: ignore[attr-defined]
    peer.receive(send(1), send(2), b"\0\0\0\x08\0\0\0\x40" + bytes(64))
    await peer.finish()
    assert peer.stored() == 2
    assert closed


async def test_more_senders_than_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("brokerd.processors.sending.admission._MAX_REMEMBERED", 1)
    peer = Peer(offers=True)
    peer.receive(*(send(n, *(("ann",) if n % 2 else ("bob",)), b="T" if n % 2 else "U") for n in range(20)))
    assert set((await peer.finish()).values()) == {codes.SUCCESS}
    assert len(peer.admission._remembered) == 1


KINDS: Final = {**LET_IN, **REFUSED}


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.sampled_from(["ordinary", *KINDS]), min_size=1, max_size=20),
    st.lists(st.integers(0, 1 << 20), max_size=8),
    st.lists(st.booleans(), min_size=1, max_size=4),
)
def test_buffers_cut_anywhere_do_what_their_requests_do_one_by_one(
    kinds: list[str], cuts: list[int], turns: list[bool]
) -> None:
    frames = [KINDS[kind](opaque) for opaque, kind in enumerate(kinds)]
    data = b"".join(frames)
    places = sorted({each % (len(data) + 1) for each in cuts} | {0, len(data)})

    async def run() -> None:
        ours, theirs = Peer(offers=True), Peer(offers=False)
        for index, (start, end) in enumerate(pairwise(places)):
            ours.receive(data[start:end])
            if turns[index % len(turns)]:
                ours.broker.next_turn()
        for each in frames:
            theirs.receive(each)
            theirs.broker.next_turn()
        assert await ours.finish() == await theirs.finish()
        assert ours.broker.store.commitlog.read(0, 1 << 16) == theirs.broker.store.commitlog.read(0, 1 << 16)
        assert ours.broker.store.queue_offsets.table == theirs.broker.store.queue_offsets.table
        assert ours.others == theirs.others
        assert ours.guard.refused == theirs.guard.refused
        assert ours.connection.user == theirs.connection.user
        assert ours.connection._in_flight == theirs.connection._in_flight == 0

    asyncio.run(run())
