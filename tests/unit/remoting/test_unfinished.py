"""The budget for frames and bodies that are not all there: who is let in, who waits, who has to go."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from remoting.transport.unfinished import PATIENCE_MS, SMALL_BYTES, Piece, keep, peer_of
from tests.support.unfinished import DEADLINE_MS, Budget

MIB = 1 << 20


class Peer:
    """Sends pieces and hears what becomes of them."""

    def __init__(self, budget: Budget, name: str) -> None:
        self.budget = budget
        self.name = name
        self.dropped_pieces: list[tuple[Piece, str]] = []
        self.let_in: list[Piece] = []

    def send(self, wanted_bytes: int, received_bytes: int = 100) -> Piece:
        return self.budget.begin(self, self.name, wanted_bytes, received_bytes)

    def room_came(self, piece: Piece) -> None:
        self.let_in.append(piece)

    def dropped(self, piece: Piece, reason: str) -> None:
        self.dropped_pieces.append((piece, reason))


@pytest.fixture
def budget() -> Budget:
    return Budget(100 * MIB)  # 80 for long pieces, 20 for the others


def come_on(budget: Budget, pieces: list[Piece], passed_ms: int, pace: float = 2.0) -> None:
    """Let time pass in which more of these comes: `pace` times what brings them to an end by the deadline."""
    for _ in range(passed_ms // 250):
        for piece in [each for each in pieces if not each.waits]:
            more = int(pace * piece.wanted_bytes * 250 / DEADLINE_MS)
            piece.received_bytes = min(piece.wanted_bytes, piece.received_bytes + more)
        budget.pass_ms(250)


def test_what_is_all_there_gives_back_what_it_took(budget: Budget) -> None:
    ann = Peer(budget, "ann")
    pieces = [ann.send(wanted) for wanted in (100, SMALL_BYTES, SMALL_BYTES + 1, 16 * MIB)]
    assert not any(piece.waits or piece.is_over for piece in pieces)
    assert budget.held_bytes == sum(piece.wanted_bytes for piece in pieces)
    for piece in (*pieces, *pieces):
        budget.end(piece)
    assert budget.held_bytes == 0
    assert len(budget.unfinished) == 0
    assert not ann.dropped_pieces


def test_long_ones_wait_while_there_is_no_room_and_small_ones_do_not(budget: Budget) -> None:
    ann = Peer(budget, "ann")
    first = [ann.send(16 * MIB) for _ in range(5)]
    later = ann.send(4 * MIB)
    assert later.waits
    assert not ann.send(1000).waits
    budget.end(first[0])
    assert ann.let_in == [later]
    assert not later.waits


def test_a_crowd_that_comes_on_is_slowed_down_and_nobody_is_turned_away(budget: Budget) -> None:
    peers = [Peer(budget, f"peer {number}") for number in range(24)]
    coming = [peer.send(16 * MIB) for peer in peers]
    ended: list[Piece] = []
    for _ in range(400):
        come_on(budget, [piece for piece in coming if not piece.waits and piece not in ended], 250, pace=8)
        for piece in coming:
            if piece not in ended and piece.received_bytes == piece.wanted_bytes:
                budget.end(piece)
                ended.append(piece)
    assert len(ended) == len(peers)
    assert not any(peer.dropped_pieces for peer in peers)


@pytest.mark.parametrize("names", [["mallory"] * 40, [f"mallory {number}" for number in range(40)]])
def test_those_who_stand_still_go_when_somebody_waited(budget: Budget, names: list[str]) -> None:
    attackers = [Peer(budget, name) for name in names]
    for attacker in attackers:
        attacker.send(15 * MIB)
    budget.pass_ms(5000)
    ann = Peer(budget, names[0])  # no better known than they
    piece = ann.send(4 * MIB)
    come_on(budget, [piece], 3 * PATIENCE_MS)
    assert not piece.waits
    assert not ann.dropped_pieces
    assert budget.held_bytes <= 100 * MIB


def test_nobody_goes_for_standing_still_while_nobody_waits(budget: Budget) -> None:
    ann = Peer(budget, "ann")
    pieces = [ann.send(16 * MIB) for _ in range(5)]
    budget.pass_ms(DEADLINE_MS - 250)
    assert not ann.dropped_pieces
    budget.pass_ms(250)
    assert [piece for piece, _ in ann.dropped_pieces] == pieces
    assert "within 30 s" in ann.dropped_pieces[0][1]


def test_what_came_while_the_daemon_stood_still_is_read_before_it_is_late(budget: Budget) -> None:
    ann, mallory = Peer(budget, "ann"), Peer(budget, "mallory")
    piece, never = ann.send(16 * MIB), mallory.send(16 * MIB)
    budget.pass_ms(500)
    for _ in range(2):
        budget.now_ms += DEADLINE_MS
        budget.unfinished.look(budget.now_ms)
        budget.end(piece)
    assert not ann.dropped_pieces
    assert [each for each, _ in mallory.dropped_pieces] == [never], "however long it stands still each time"


def test_one_peer_with_much_makes_room_for_another_and_keeps_its_share(budget: Budget) -> None:
    ann, bob = Peer(budget, "ann"), Peer(budget, "bob")
    pieces = [ann.send(16 * MIB) for _ in range(5)]
    others = [bob.send(16 * MIB) for _ in range(5)]
    come_on(budget, [*pieces, *others], 2500)
    assert [piece for piece, _ in ann.dropped_pieces] == pieces[:2], (
        "the oldest, until bob has as much as would be left"
    )
    assert [piece.waits for piece in others].count(False) == 2
    come_on(budget, [*pieces, *others], 2500)
    assert (len(ann.dropped_pieces), len(bob.dropped_pieces)) == (2, 0), "equal peers do not turn each other out"


def test_room_goes_to_who_holds_least_and_to_the_short_before_the_long(budget: Budget) -> None:
    ann, bob = Peer(budget, "ann"), Peer(budget, "bob")
    first = [ann.send(16 * MIB) for _ in range(5)]
    long, short = ann.send(16 * MIB), ann.send(MIB)
    others = bob.send(16 * MIB)
    budget.end(first[0])
    assert bob.let_in == [others]
    budget.end(first[1])
    assert ann.let_in == [short]
    assert long.waits


def test_small_ones_leave_when_there_are_too_many_of_one_peer(budget: Budget) -> None:
    ann, mallory = Peer(budget, "ann"), Peer(budget, "mallory")
    kept = [ann.send(SMALL_BYTES) for _ in range(10)]
    flood = [mallory.send(SMALL_BYTES) for _ in range(1000)]
    assert not any(piece.is_over for piece in kept)
    assert flood[0].is_over
    assert not flood[-1].is_over
    assert budget.held_bytes <= 20 * MIB


def test_what_comes_of_one_that_waits_counts(budget: Budget) -> None:
    mallory = Peer(budget, "mallory")
    for _ in range(5):
        mallory.send(16 * MIB)
    waiting = [mallory.send(16 * MIB) for _ in range(100)]
    for piece in waiting:
        if not piece.is_over:
            piece.received_bytes = MIB
            budget.unfinished.grew(piece)
    assert budget.unfinished.lobby_bytes <= 20 * MIB
    assert sum(piece.waits for piece in waiting) == 20
    assert len(mallory.dropped_pieces) == 80


def test_who_was_made_room_has_it_whatever_begins_meanwhile(budget: Budget) -> None:
    """Short pieces that stand still and come again when they are dropped, of somebody with the same address."""
    mallory, ann = Peer(budget, "address"), Peer(budget, "address")
    flood = [mallory.send(SMALL_BYTES + 1) for _ in range(2000)]
    piece = ann.send(4 * MIB)
    assert piece.waits
    for _ in range(5 * PATIENCE_MS // 250):
        again = [number for number, each in enumerate(flood) if each.is_over][:100]
        for number in again:
            flood[number] = mallory.send(SMALL_BYTES + 1)
        come_on(budget, [piece], 250)
    assert not piece.waits
    assert not ann.dropped_pieces


def test_room_is_made_for_the_short_and_for_each_peer_first(budget: Budget) -> None:
    """However many waited longer."""
    mallory, ann, bob = Peer(budget, "address"), Peer(budget, "address"), Peer(budget, "bob")
    for _ in range(300):
        mallory.send(15 * MIB)
    budget.pass_ms(250)
    pieces = [peer.send(4 * MIB) for peer in (ann, bob, bob, bob)]
    come_on(budget, pieces, 2 * PATIENCE_MS)
    assert not any(piece.waits for piece in pieces)
    assert not ann.dropped_pieces
    assert not bob.dropped_pieces


def test_a_small_one_costs_the_same_while_many_wait(budget: Budget, monkeypatch: pytest.MonkeyPatch) -> None:
    mallory, ann = Peer(budget, "mallory"), Peer(budget, "ann")
    for _ in range(600):
        mallory.send(16 * MIB)
    looks: list[Piece] = []
    whose_turn = budget.unfinished._precedence

    def counted(piece: Piece) -> tuple[int, int, int]:
        looks.append(piece)
        return whose_turn(piece)

    monkeypatch.setattr(budget.unfinished, "_precedence", counted)
    for _ in range(100):
        budget.end(ann.send(1000))
    assert budget.unfinished.waiting > 500
    assert not looks, "of those that wait, for room that a small one does not give"


def test_how_many_wait_is_bounded(budget: Budget) -> None:
    mallory = Peer(budget, "mallory")
    for _ in range(10_000):
        mallory.send(16 * MIB, received_bytes=5)
    assert budget.unfinished.waiting <= 20 * 32


@pytest.mark.parametrize("seed", range(5))
def test_numbers_are_right_after_anything(budget: Budget, seed: int) -> None:
    chance = random.Random(seed)
    peers = [Peer(budget, f"peer {number}") for number in range(6)]
    pieces: list[Piece] = []

    def begin() -> None:
        wanted = chance.choice([10, 5000, SMALL_BYTES, 100_000, MIB, 16 * MIB, 60 * MIB])
        pieces.append(chance.choice(peers).send(wanted, min(wanted, chance.randrange(1, 5000))))

    def end() -> None:
        if pieces:
            budget.end(pieces.pop(chance.randrange(len(pieces))))

    def grow() -> None:
        for piece in chance.sample(pieces, min(len(pieces), 5)):
            if not piece.is_over:
                piece.received_bytes = min(piece.wanted_bytes, piece.received_bytes + chance.randrange(2 * MIB))
                budget.unfinished.grew(piece)

    def arrive() -> None:
        if pieces:
            budget.unfinished.arrived(chance.choice(pieces), budget.now_ms)

    acts: list[Callable[[], Any]] = [
        begin,
        begin,
        end,
        grow,
        arrive,
        lambda: budget.pass_ms(chance.choice([1, 250, 2000])),
    ]
    for _ in range(3000):
        chance.choice(acts)()
        assert budget.unfinished.reserved_bytes <= 80 * MIB
        assert budget.unfinished.lobby_bytes <= 20 * MIB
        live = [piece for piece in pieces if not piece.is_over]
        assert budget.unfinished.reserved_bytes == sum(piece.wanted_bytes for piece in live if is_let_in(piece))
        assert budget.unfinished.waiting == sum(piece.waits for piece in live)
    pieces = [piece for piece in pieces if not piece.is_over]
    for piece in pieces:
        budget.end(piece)
    assert (budget.held_bytes, len(budget.unfinished), budget.unfinished.waiting) == (0, 0, 0)
    assert not budget.unfinished._shares


def is_let_in(piece: Piece) -> bool:
    return piece.wanted_bytes > SMALL_BYTES and not piece.waits


def test_what_arrived_counts_until_its_end_and_goes_for_nobody(budget: Budget) -> None:
    ann, bob = Peer(budget, "ann"), Peer(budget, "bob")
    pieces = [ann.send(16 * MIB) for _ in range(5)]
    small = ann.send(1000)
    for piece in (*pieces, small):
        budget.unfinished.arrived(piece, budget.now_ms)
    assert small.is_over
    waiting = bob.send(16 * MIB)
    budget.pass_ms(DEADLINE_MS - 250)
    assert waiting.waits
    assert budget.unfinished.reserved_bytes == 80 * MIB
    budget.end(pieces[0])
    assert bob.let_in == [waiting]
    assert not ann.dropped_pieces
    for piece in (*pieces, waiting):
        budget.end(piece)
    assert budget.held_bytes == 0
    assert not budget.unfinished._shares


def test_who_is_behind_an_address() -> None:
    assert peer_of("10.0.0.1") == "10.0.0.1"
    assert peer_of("2001:db8::1") == peer_of("2001:db8::ffff:1") != peer_of("2001:db8:0:1::1")
    assert peer_of("fe80::1%eth0") == peer_of("fe80::2")


def test_crumbs_are_put_together() -> None:
    chunks: list[bytes | bytearray] = []
    sent = [bytes((number % 256,)) * (1 if number % 100 else 5000) for number in range(1000)]
    for each in sent:
        keep(chunks, each)
    assert b"".join(chunks) == b"".join(sent)
    assert len(chunks) == 20
