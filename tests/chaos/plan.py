"""Which faults a scenario injects, drawn from a seed (pure).

The twelve of the published experiment draw nodes whatever their role is; others aim at roles, which are looked up when the fault
begins: `Roles` is what the cluster looked like then.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.chaos.addresses import CLIENTS, Link, among, both_ways
from tests.chaos.impair import Impairment

CUT: Final = Impairment(loss=1.0)
LOSS: Final = Impairment(loss=0.8)
SLOW: Final = Impairment(delay_ms=2000)
JUMP_S: Final = 3600


# What a disk may change: kinds of files of a broker, and those of a controller.
LOG: Final = "log"
LOG_END: Final = "last record of the log"
QUEUE: Final = "queue"
CHECKS: Final = "checks of a queue"
INDEX: Final = "index"
CHECKPOINT: Final = "checkpoint"
EPOCHS: Final = "epochs"
RAFT: Final = "Raft log"
OF_A_STOPPED_BROKER: Final = (LOG, LOG, LOG, LOG_END, QUEUE, QUEUE, CHECKS, INDEX, CHECKPOINT)
OF_A_RUNNING_BROKER: Final = (LOG, LOG, LOG, QUEUE, QUEUE, CHECKS, INDEX, CHECKPOINT)

_COMMITLOG: Final = "/commitlog/"
_RAFT: Final = "/raft/"


@dataclass(frozen=True)
class DiskRule:
    """What a daemon's disk does to calls on files with `part` in their paths: reads, writes, syncs, or what makes a file larger.

    Each so-manieth of the calls ends with the errno, or transfers less than was asked for when `error` is empty; with `stands` it
    ends when the disk obeys again. `ends`: the daemon is to end of it, by itself.
    """

    part: str
    calls: tuple[str, ...]
    error: str = ""
    every: int = 1
    ends: bool = False
    stands: bool = False

    def __str__(self) -> str:
        often = "each" if self.every == 1 else f"one of {self.every}"
        if self.stands:
            return f"{often} {'/'.join(self.calls)} on {self.part} does not end"
        return (
            f"{often} {'/'.join(self.calls)} on {self.part} {f'ends with {self.error}' if self.error else 'is short'}"
        )


@dataclass(frozen=True)
class Roles:
    """Who is there, and who is what."""

    controllers: tuple[str, ...]
    brokers: tuple[str, ...]  # those that may be elected
    master: str
    leader: str

    @property
    def replicas(self) -> tuple[str, ...]:
        return tuple(name for name in self.brokers if name != self.master)

    @property
    def nodes(self) -> tuple[str, ...]:
        return (*self.controllers, *self.brokers)


@dataclass(frozen=True)
class Faults:
    """What is wrong at one time. A node is in at most one of kills and freezes."""

    kills: tuple[str, ...] = ()
    freezes: tuple[str, ...] = ()
    links: Mapping[Link, Impairment] = field(default_factory=dict)
    clocks_s: Mapping[str, int] = field(default_factory=dict)
    rots: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # kinds of files in which a byte changes, after the kills
    disks: Mapping[str, DiskRule] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How many single faults this is: processes, links in one direction, clocks, changed bytes, failing disks."""
        rots = sum(map(len, self.rots.values()))
        return len(self.kills) + len(self.freezes) + len(self.links) + len(self.clocks_s) + rots + len(self.disks)

    def describe(self) -> dict[str, Any]:
        """For the log and the report."""
        told: dict[str, Any] = {}
        if self.kills:
            told["killed"] = list(self.kills)
        if self.freezes:
            told["frozen"] = list(self.freezes)
        for name, group in _grouped(self.links):
            told[name] = group
        if self.clocks_s:
            told["clock"] = {node: f"{offset_s:+d} s" for node, offset_s in self.clocks_s.items()}
        if self.rots:
            told["changed bytes"] = {node: list(kinds) for node, kinds in self.rots.items()}
        if self.disks:
            told["disk"] = {node: str(rule) for node, rule in self.disks.items()}
        return told

    def stands(self, node: str) -> bool:
        """Whether the node's disk ends no sync, while the node speaks."""
        return node in self.disks and self.disks[node].stands

    def silences(self, node: str) -> bool:
        """Whether the node cannot be heard by some other daemon while its process does not end."""
        return node in self.freezes or any(
            node in (link.source, link.target) and CLIENTS not in link for link in self.links
        )


def _grouped(links: Mapping[Link, Impairment]) -> list[tuple[str, list[str]]]:
    names = {CUT: "cut", LOSS: "80 % loss", SLOW: "2 s late"}
    groups: dict[str, list[str]] = {}
    for link, how in links.items():
        both = Link(link.target, link.source) in links
        text = "-".join(sorted(link)) if both else str(link)
        group = groups.setdefault(names.get(how, str(how)), [])
        if text not in group:
            group.append(text)
    return list(groups.items())


def majority(names: tuple[str, ...]) -> int:
    return len(names) // 2 + 1


def pick(rng: random.Random, names: tuple[str, ...], count: int) -> tuple[str, ...]:
    """Some of the names, in their order."""
    chosen = set(rng.sample(names, count))
    return tuple(name for name in names if name in chosen)


def split(rng: random.Random, names: tuple[str, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two random groups that are not empty."""
    one = pick(rng, names, rng.randrange(1, len(names)))
    return one, tuple(name for name in names if name not in one)


def cut(links: Iterable[Link]) -> dict[Link, Impairment]:
    return dict.fromkeys(links, CUT)


# ---- the twelve of the published experiment


def crash_brokers(rng: random.Random, roles: Roles) -> Faults:
    count = min(majority(roles.brokers), len(roles.brokers) - 1)
    return Faults(kills=pick(rng, roles.brokers, count))


def crash_most_controllers(rng: random.Random, roles: Roles) -> Faults:
    return Faults(kills=pick(rng, roles.controllers, majority(roles.controllers)))


def crash_all_controllers(_: random.Random, roles: Roles) -> Faults:
    return Faults(kills=roles.controllers)


def crash_both(rng: random.Random, roles: Roles) -> Faults:
    return Faults(kills=(*crash_most_controllers(rng, roles).kills, *crash_brokers(rng, roles).kills))


def freeze_brokers(rng: random.Random, roles: Roles) -> Faults:
    return Faults(freezes=crash_brokers(rng, roles).kills)


def freeze_most_controllers(rng: random.Random, roles: Roles) -> Faults:
    return Faults(freezes=crash_most_controllers(rng, roles).kills)


def freeze_all_controllers(_: random.Random, roles: Roles) -> Faults:
    return Faults(freezes=roles.controllers)


def freeze_both(rng: random.Random, roles: Roles) -> Faults:
    return Faults(freezes=crash_both(rng, roles).kills)


def lose_among_brokers(_: random.Random, roles: Roles) -> Faults:
    return Faults(links=dict.fromkeys(among(roles.brokers), LOSS))


def lose_among_controllers(_: random.Random, roles: Roles) -> Faults:
    return Faults(links=dict.fromkeys(among(roles.controllers), LOSS))


def lose_among_all(_: random.Random, roles: Roles) -> Faults:
    return Faults(links=dict.fromkeys(among(roles.nodes), LOSS))


def part_brokers(rng: random.Random, roles: Roles) -> Faults:
    return Faults(links=cut(both_ways(*split(rng, roles.brokers))))


def part_controllers(rng: random.Random, roles: Roles) -> Faults:
    return Faults(links=cut(both_ways(*split(rng, roles.controllers))))


def part_all(rng: random.Random, roles: Roles) -> Faults:
    return Faults(links=cut(both_ways(*split(rng, roles.nodes))))


# ---- aimed at roles


def kill_master(_: random.Random, roles: Roles) -> Faults:
    return Faults(kills=(roles.master,))


def freeze_master(_: random.Random, roles: Roles) -> Faults:
    return Faults(freezes=(roles.master,))


def part_master(_: random.Random, roles: Roles) -> Faults:
    """The master alone; clients reach it and everybody else."""
    others = tuple(name for name in roles.nodes if name != roles.master)
    return Faults(links=cut(both_ways((roles.master,), others)))


def freeze_replica(rng: random.Random, roles: Roles) -> Faults:
    return Faults(freezes=pick(rng, roles.replicas, 1))


def part_master_one_way(rng: random.Random, roles: Roles) -> Faults:
    others = [name for name in roles.nodes if name != roles.master]
    if rng.random() < 0.5:
        return Faults(links=cut(Link(roles.master, name) for name in others))
    return Faults(links=cut(Link(name, roles.master) for name in others))


def part_master_with_clients(rng: random.Random, roles: Roles) -> Faults:
    """The master, one controller and all clients on one side; everybody else on the other."""
    here = (roles.master, rng.choice(roles.controllers), CLIENTS)
    return Faults(links=cut(both_ways(here, tuple(name for name in roles.nodes if name not in here))))


def jump_clocks(rng: random.Random, roles: Roles) -> Faults:
    """The master's, a replica's, the leader's and a follower's clock, each an hour ahead or behind."""
    follower = rng.choice([name for name in roles.controllers if name != roles.leader])
    chosen = (roles.master, rng.choice(roles.replicas), roles.leader, follower)
    return Faults(clocks_s={name: rng.choice((-JUMP_S, JUMP_S)) for name in chosen})


def kill_master_unseen(_: random.Random, roles: Roles) -> Faults:
    """Clients cannot ask any name server who the new master is."""
    return Faults(kills=(roles.master,), links=cut(both_ways((CLIENTS,), roles.controllers)))


def slow_broker(rng: random.Random, roles: Roles) -> Faults:
    slow = rng.choice(roles.brokers)
    others = tuple(name for name in roles.nodes if name != slow)
    return Faults(links=dict.fromkeys(both_ways((slow,), others), SLOW))


def ring_of_controllers(rng: random.Random, roles: Roles) -> Faults:
    """Each sees its two neighbours only."""
    ring = list(roles.controllers)
    rng.shuffle(ring)
    near = {frozenset((ring[n], ring[(n + 1) % len(ring)])) for n in range(len(ring))}
    return Faults(links=cut(link for link in among(roles.controllers) if frozenset(link) not in near))


def bridge_of_controllers(rng: random.Random, roles: Roles) -> Faults:
    """Two halves that see each other through one node only."""
    order = list(roles.controllers)
    rng.shuffle(order)
    half = len(order) // 2
    return Faults(links=cut(both_ways(tuple(order[:half]), tuple(order[half + 1 :]))))


# ---- disks that change bytes, and disks that refuse


def rot_of_a_stopped_replica(rng: random.Random, roles: Roles) -> Faults:
    victim = rng.choice(roles.replicas)
    return Faults(kills=(victim,), rots={victim: OF_A_STOPPED_BROKER})


def rot_of_the_killed_master(_: random.Random, roles: Roles) -> Faults:
    return Faults(kills=(roles.master,), rots={roles.master: OF_A_STOPPED_BROKER})


def rot_of_a_stopped_controller(rng: random.Random, roles: Roles) -> Faults:
    """A minority: one of them, whoever leads."""
    victim = rng.choice(roles.controllers)
    return Faults(kills=(victim,), rots={victim: (RAFT,)})


def rot_of_the_running_leader(_: random.Random, roles: Roles) -> Faults:
    return Faults(rots={roles.leader: (RAFT,)})


def rot_of_running_brokers(_: random.Random, roles: Roles) -> Faults:
    """All of them: which broker may have changed bytes where is `is_mine`'s matter, so that every byte has intact copies."""
    return Faults(rots=dict.fromkeys(roles.brokers, OF_A_RUNNING_BROKER))


def rot_of_the_epochs(rng: random.Random, roles: Roles) -> Faults:
    victim = rng.choice(roles.replicas)
    return Faults(kills=(victim,), rots={victim: (EPOCHS,)})


def short_transfers(rng: random.Random, roles: Roles) -> Faults:
    """On every disk, so that no read and no write is whole for long."""
    return Faults(
        disks={each: DiskRule(f"/{each}/", ("read", "write"), every=rng.randrange(2, 4)) for each in roles.nodes}
    )


def failing_master(rng: random.Random, roles: Roles) -> Faults:
    """Its log takes no byte more, or none that it could sync."""
    return Faults(disks={roles.master: DiskRule(_COMMITLOG, (rng.choice(("write", "sync")),), "EIO", ends=True)})


def failing_replica(rng: random.Random, roles: Roles) -> Faults:
    victim = rng.choice(roles.replicas)
    return Faults(disks={victim: DiskRule(_COMMITLOG, (rng.choice(("write", "sync")),), "EIO", ends=True)})


def failing_leader(rng: random.Random, roles: Roles) -> Faults:
    """It is out of service while nothing can be written, and ends when it cannot know what is on its disk."""
    call = rng.choice(("write", "sync"))
    return Faults(disks={roles.leader: DiskRule(_RAFT, (call,), "EIO", ends=call == "sync")})


def unreadable_master(_: random.Random, roles: Roles) -> Faults:
    """What of its log it does not have in memory: a replica that was away asks for it."""
    return Faults(disks={roles.master: DiskRule(_COMMITLOG, ("read",), "EIO")})


def standing_master(_: random.Random, roles: Roles) -> Faults:
    """Its disk takes writes and ends no sync, of whatever file."""
    return Faults(disks={roles.master: DiskRule("/", ("sync",), stands=True)})


def no_room_for_the_next_file(_: random.Random, roles: Roles) -> Faults:
    """The master's file of the log can be written to its end; the one behind it cannot be made."""
    return Faults(disks={roles.master: DiskRule(_COMMITLOG, ("grow",), "ENOSPC")})
