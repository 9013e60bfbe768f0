"""Epochs and truncation as a game: random writes, catch-up in batches, clean switches and restarts, on logs that are lists.

Every byte knows which master incarnation really wrote it. After each move, two logs that agree by their epochs must agree byte
for byte, and a replica that has just been cut must have a prefix of its master's. Our rules never break that; the same game with
the usual design's three rules (one at a time, and together) finds divergence, and replicas that can never follow again.
"""

from __future__ import annotations

import os
from collections import Counter
from random import Random

import pytest

from brokerd.replication.epochs.epoch_list import EpochEntry, EpochList

SCHEDULES = int(os.environ.get("MODEL_SCHEDULES", "600"))
MOVES = {"write": 10, "catch_up": 14, "switch": 5, "restart": 1}


class Divergence(AssertionError):
    """Two logs differ where their epochs say that they agree."""


class Stuck(AssertionError):
    """A replica and its master have no epoch in common, though both have bytes."""


class Rules:
    """What this project does. Subclasses do what is known to fail."""

    copies_anew = True

    def begin(self, epochs: EpochList, epoch: int, end: int) -> None:
        epochs.begin(epoch, end)

    def label(self, epochs: EpochList, offset: int, end: int, length: int) -> tuple[EpochEntry, int]:
        """The entry that goes with a batch from `offset`, and how long the batch may be."""
        found = epochs.find(offset)
        if found is None:
            raise Stuck(f"no epoch covers {offset}: {epochs.entries}")
        entry, epoch_end = found
        return entry, min(length, (end if epoch_end is None else epoch_end) - offset)

    def take(self, epochs: EpochList, entry: EpochEntry) -> None:
        """A replica notes the entry of a batch."""
        last = epochs.last
        if last is None or last != entry:
            epochs.begin(entry.epoch, entry.start_offset)

    def restart(self, epochs: EpochList, epoch: int, end: int) -> int:
        """The master's process starts again; the epoch that it goes on with."""
        self.begin(epochs, epoch + 1, end)
        return epoch + 1


class RefusesEqualStarts(Rules):
    """An epoch that begins where the last one did is refused: its bytes get the older number."""

    def begin(self, epochs: EpochList, epoch: int, end: int) -> None:
        last = epochs.last
        if last is None or last.start_offset < end:
            epochs.begin(epoch, end)


class LabelsWithTheNext(Rules):
    """The cursor moves to the next epoch before the header of the last batch is made."""

    def label(self, epochs: EpochList, offset: int, end: int, length: int) -> tuple[EpochEntry, int]:
        _, length = super().label(epochs, offset, end, length)
        found = epochs.find(offset + length)
        assert found is not None
        return found[0], length

    def take(self, epochs: EpochList, entry: EpochEntry) -> None:
        last = epochs.last
        if last is None or (last.epoch < entry.epoch and last.start_offset < entry.start_offset):
            epochs.begin(entry.epoch, entry.start_offset)


class MovesTheStart(Rules):
    """A master that restarts goes on with its epoch, whose start moves to the present end."""

    copies_anew = False

    def restart(self, epochs: EpochList, epoch: int, end: int) -> int:
        epochs.replace([entry for entry in epochs.entries if entry.epoch < epoch])
        epochs.begin(epoch, end)
        return epoch


class UsualDesign(RefusesEqualStarts, LabelsWithTheNext, MovesTheStart):
    """All three."""


class Replica:
    def __init__(self) -> None:
        self.log: list[tuple[int, int]] = []  # (incarnation that wrote the byte, serial number)
        self.epochs = EpochList()


class Game:
    """Three replicas. A switch elects a member of the set; the set is the master and who has caught up with it since."""

    def __init__(self, seed: int, rules: Rules) -> None:
        self.rng = Random(seed)
        self.rules = rules
        self.replicas = [Replica() for _ in range(3)]
        self.master = self.replicas[0]
        self.members = {0}
        self.epoch = self.incarnation = 1
        self.serial = 0
        self.did: Counter[str] = Counter()
        rules.begin(self.master.epochs, 1, 0)

    def play(self, moves: int = 80) -> None:
        for name in self.rng.choices(list(MOVES), list(MOVES.values()), k=moves):
            getattr(self, name)()
            self.did[name] += 1
            self.check()

    def write(self) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.serial += 1
            self.master.log.append((self.incarnation, self.serial))

    def catch_up(self) -> None:
        """A replica connects: it is cut, and gets some batches."""
        index = self.rng.randrange(3)
        replica, master = self.replicas[index], self.master
        if replica is master:
            return
        if replica.log:
            common = replica.epochs.common_end(len(replica.log), master.epochs.entries, len(master.log))
            if common is None:
                if not self.rules.copies_anew:
                    raise Stuck(f"replica {index}: {replica.epochs.entries} and {master.epochs.entries}")
                common = 0
                replica.epochs.replace(())
            del replica.log[common:]
            replica.epochs.cut(common)
        else:
            replica.epochs.replace(())
        if replica.log != master.log[: len(replica.log)]:
            raise Divergence(f"replica {index} was cut to {len(replica.log)} bytes, which are not the master's")
        for _ in range(self.rng.randint(0, 4)):
            offset = len(replica.log)
            if offset == len(master.log):
                break
            entry, length = self.rules.label(master.epochs, offset, len(master.log), self.rng.randint(1, 5))
            self.rules.take(replica.epochs, entry)
            replica.log += master.log[offset : offset + length]
        if len(replica.log) == len(master.log):
            self.members.add(index)

    def switch(self) -> None:
        index = self.rng.choice(sorted(self.members))
        self.master = self.replicas[index]
        self.members = {index}
        self.epoch += 1
        self.incarnation += 1
        self.rules.begin(self.master.epochs, self.epoch, len(self.master.log))

    def restart(self) -> None:
        """The master loses what nobody else has, at most, and is master again at once."""
        index = self.replicas.index(self.master)
        held = max((len(self.replicas[each].log) for each in self.members - {index}), default=len(self.master.log))
        del self.master.log[max(held, self.rng.randint(0, len(self.master.log))) :]
        self.master.epochs.cut(len(self.master.log) + 1)
        self.incarnation += 1
        self.epoch = self.rules.restart(self.master.epochs, self.epoch, len(self.master.log))
        self.members = {index}

    def check(self) -> None:
        for index, one in enumerate(self.replicas):
            for other in self.replicas[:index]:
                common = one.epochs.common_end(len(one.log), other.epochs.entries, len(other.log))
                if common is not None and one.log[:common] != other.log[:common]:
                    raise Divergence(f"{one.epochs.entries} and {other.epochs.entries} below {common}")


def outcomes(rules: type[Rules], schedules: int = SCHEDULES) -> Counter[str]:
    found: Counter[str] = Counter()
    for seed in range(schedules):
        game = Game(seed, rules())
        try:
            game.play()
        except (Divergence, Stuck) as error:
            found[type(error).__name__] += 1
        found += game.did
    return found


def test_our_rules_never_diverge_and_nobody_is_stuck() -> None:
    found = outcomes(Rules)
    assert (found["Divergence"], found["Stuck"]) == (0, 0)
    for move, weight in MOVES.items():
        assert found[move] > SCHEDULES * weight / 2, f"the game hardly played {move}: {found}"


@pytest.mark.parametrize("rules", [RefusesEqualStarts, LabelsWithTheNext, MovesTheStart])
def test_each_of_the_usual_rules_alone_is_found(rules: type[Rules]) -> None:
    found = outcomes(rules)
    assert found["Divergence"] + found["Stuck"] > 0, found


def test_the_usual_design_diverges_often_and_gets_stuck() -> None:
    found = outcomes(UsualDesign)
    assert found["Divergence"] > SCHEDULES / 20, found
    assert found["Stuck"] > SCHEDULES / 100, found
