"""Order of message groups over two broker groups, with the original's clients of version 5 for three languages at once.

Programs in Java, Node and Python send orders of the same thousand customers, each a message group, to one topic, and share one
consumer group: what follows in a message group comes to whichever of them asks. One delivery in a hundred is not acked. Meanwhile
the topic's placement changes, and a master is killed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.interop import programs
from tests.interop.apache import Apache, Unavailable
from tests.interop.programs import Program, Running
from tests.support.certificates import of_the_appliance
from tests.support.cluster import Cluster, eventually
from tests.support.ordered_deliveries import Deliveries, come_back, out_of_order
from tests.support.placed_messages import Stored, check_turns, stored, wait_for_placement

CUSTOMERS = 1000
ROUNDS = 4  # the placement changes in the second, a master dies in the third
FAILING = 100  # one delivery out of so many
TOPIC, GROUP = "Orders", "billing"
LONGEST_S = 240  # for a round, and for what is left at the end

Make = Callable[[Apache, Path], Program]
CLIENTS: dict[str, Make] = {
    "java": lambda apache, directory: programs.java_grpc(apache, directory, "Orders"),  # TLS, whatever the certificate
    "node": lambda _, directory: programs.node_grpc("orders"),  # plaintext, and one address
    "python": lambda _, directory: programs.python_grpc("orders"),  # plaintext
}


class Lived(NamedTuple):
    """What the programs said, and what is in the topic in the end.

    `sent_at_change` and `sent_at_kill` say how many messages each had sent when the change began and when the master was gone.
    """

    found: Deliveries
    stored: Stored
    sent_at_change: Mapping[str, int]
    sent_at_kill: Mapping[str, int]
    handled_at_kill: int


class Clients:
    """The programs of all languages. Use it as a context manager."""

    def __init__(self, commands: Mapping[str, Program], access_points: Mapping[str, str], directory: Path) -> None:
        self.found = Deliveries()
        self._rounds = 0
        self._ready: set[str] = set()
        with ExitStack() as stack:
            self._running: dict[str, Running] = {
                name: stack.enter_context(
                    program.start(
                        [access_points[name], TOPIC, GROUP, name, str(CUSTOMERS), str(FAILING)], directory / name
                    )
                )
                for name, program in commands.items()
            }
            self._stack = stack.pop_all()

    def __enter__(self) -> Clients:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait_ready(self) -> None:
        self._until("the programs are ready", lambda: self._ready >= self._running.keys())

    def begin_round(self) -> None:
        for running in self._running.values():
            running.tell("a round")
        self._rounds += 1

    def wait_sent(self, part: float) -> None:
        """Until each has sent so much of the present round."""
        least = (self._rounds - 1 + part) * CUSTOMERS
        self._until(f"{least} sent by each", lambda: all(sent >= least for sent in self.sent.values()))

    def wait_handled(self) -> None:
        self._until("everything sent is handled", lambda: self.found.is_all_handled)

    @property
    def sent(self) -> Mapping[str, int]:
        self.listen()
        return {name: self.found.counts[name, "sent"] for name in self._running}

    def listen(self) -> None:
        for name, running in self._running.items():
            assert not running.has_ended, f"{name} ended:\n{running.output[-4000:]}"
            for line in running.new_lines():
                self.found.take(name, line)
                if line == '"ready"':
                    self._ready.add(name)

    def _until(self, what: str, holds: Callable[[], bool]) -> None:
        def listened() -> bool:
            self.listen()
            return holds()

        eventually(what, listened, LONGEST_S)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three controllers and two groups of two brokers, whose ports answer TLS and plaintext."""
    root = tmp_path_factory.mktemp("orders")
    tls, _ = of_the_appliance(root / "appliance")
    with Cluster(
        root / "cluster",
        replicas=2,
        groups=("broker-a", "broker-b"),
        broker_settings=tls,
        controller_settings=tls,
    ) as running:
        running.start()
        yield running


@pytest.fixture(scope="module")
def lived(apache: Apache, cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Lived:
    directory = tmp_path_factory.mktemp("clients")
    try:
        commands = {name: make(apache, directory) for name, make in CLIENTS.items()}
    except Unavailable as reason:
        pytest.skip(str(reason))
    for name in cluster.groups:
        cluster.admin.create_topic(TOPIC, 4, "FIFO", 6, name)
    cluster.admin.create_group(GROUP, fifo=True)
    wait_for_placement(cluster, TOPIC, ("broker-a", 4), ("broker-b", 4))
    # one is given a master of the one broker group, one a replica of it, and one the master of the other
    first, second = cluster.master("broker-a"), cluster.master("broker-b")
    given = {"java": first, "node": second, "python": 1 - first}
    access_points = {name: cluster.grpc_addresses[index] for name, index in given.items()}
    with Clients(commands, access_points, directory) as clients:
        clients.wait_ready()
        clients.begin_round()
        clients.wait_sent(1)

        clients.begin_round()
        clients.wait_sent(0.3)
        at_change = clients.sent
        cluster.admin.create_topic(TOPIC, 8, "FIFO", 6, "broker-b")
        wait_for_placement(cluster, TOPIC, ("broker-a", 4), ("broker-b", 8))
        clients.wait_sent(1)

        clients.begin_round()
        clients.wait_sent(0.3)
        clients.listen()
        handled_at_kill = len(clients.found.acked)
        cluster.brokers[second].kill()
        eventually("another master", lambda: cluster.master("broker-b") != second)
        at_kill = clients.sent
        cluster.brokers[second].start()
        clients.wait_sent(1)

        clients.begin_round()
        clients.wait_sent(1)
        clients.wait_handled()
        return Lived(clients.found, stored(cluster, TOPIC), at_change, at_kill, handled_at_kill)


def test_each_is_sent_and_stored_in_its_turn(lived: Lived) -> None:
    """Nothing is lost, one owner at a time."""
    assert Counter(lived.found.sent.values()) == dict.fromkeys(CLIENTS, CUSTOMERS * ROUNDS)
    keys = {f"customer {customer}/{name}" for customer in range(CUSTOMERS) for name in CLIENTS}
    assert lived.stored.keys() == keys
    for key in keys:
        check_turns(lived.stored[key], ROUNDS)


def test_each_is_delivered_and_handled(lived: Lived) -> None:
    assert lived.found.sent.keys() <= {name for receive in lived.found.receives for name in receive.names}
    assert lived.found.is_all_handled


def test_none_comes_before_the_one_in_front_of_it_is_handled(lived: Lived) -> None:
    assert list(out_of_order(lived.found)) == []


def test_what_is_finished_does_not_come_again(lived: Lived) -> None:
    copies = Counter(
        f"{key}/{number}" for key, queues in lived.stored.items() for numbers in queues.values() for number in numbers
    )
    assert list(come_back(lived.found, copies)) == []


def test_one_delivery_in_a_hundred_failed_and_came_again(lived: Lived) -> None:
    counts = lived.found.counts
    for name in CLIENTS:
        tried = sum(counts[name, what] for what in ("failed", "acked", "unacked"))
        assert counts[name, "failed"] == tried // FAILING > 0
    deliveries = Counter(name for receive in lived.found.receives for name in receive.names)
    assert len(lived.found.failed) >= CUSTOMERS * ROUNDS * len(CLIENTS) // FAILING - len(CLIENTS)
    assert all(deliveries[name] > 1 for name in lived.found.failed)


def test_the_placement_changed_and_the_master_died_under_way(lived: Lived) -> None:
    for name in CLIENTS:
        assert CUSTOMERS < lived.sent_at_change[name] < 2 * CUSTOMERS
        assert 2 * CUSTOMERS < lived.sent_at_kill[name] < 3 * CUSTOMERS
    assert 0 < lived.handled_at_kill < len(lived.found.acked)
    moved = [queues for queues in lived.stored.values() if len({name for name, _ in queues}) > 1]
    in_one_broker_group = [queues for queues in lived.stored.values() if len(queues) > 1 and queues not in moved]
    assert moved
    assert in_one_broker_group


def test_message_groups_pass_from_one_language_to_the_other(lived: Lived) -> None:
    pairs = {(by, lived.found.acked_by.get(name)) for name, by in lived.found.sent.items()}
    assert pairs >= {(sender, receiver) for sender in CLIENTS for receiver in CLIENTS}
