"""A cluster under load, as one scenario sees it: who is what, faults with their windows, healing, and the aftermath."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

from tests.chaos.checks import GRPC_CLIENT, POPPING, PULLING, Aftermath, LogCopy, Recovery
from tests.chaos.clients import POP_GROUP, PULL_GROUP, QUEUES, TOPIC, Client, PopConsumer, Producer, PullConsumer
from tests.chaos.daemons import ChaosCluster
from tests.chaos.grpc_program import GRPC_GROUP, GRPC_TOPIC, GrpcProgram
from tests.chaos.history import SET_LOST, FaultWindow, History, Outcome, name_in
from tests.chaos.injection import Injection
from tests.chaos.observer import Observer
from tests.chaos.plan import Faults, Roles
from tests.chaos.readback import controller_log, log_bytes, read_queue
from tests.chaos.recovery import limit_of, recovery_of
from tests.support.cluster import eventually
from tests.support.documents import document
from tests.support.workload import call_until

REJOIN_LIMIT_S: Final = 60
CONSUMED_LIMIT_S: Final = (
    60  # without anything that was missing; a slow machine's consumers may have much to catch up on
)
_PRODUCERS: Final = 3
_WARM_UP: Final = 30  # acknowledged sends of each producer


class Stage:
    """One scenario's cluster, clients and records. `start`, any number of faults, `finish`."""

    def __init__(
        self,
        cluster: ChaosCluster,
        rng: random.Random,
        fault_s: float,
        heal_s: float,
        pause_s: float,
        say: Callable[[str], None],
    ) -> None:
        """`pause_s` is between two sends of a producer."""
        self.cluster = cluster
        self.network = cluster.network
        self.rng = rng
        self.fault_s = fault_s
        self.heal_s = heal_s
        self.say = say
        self.history = History()
        self.recoveries: list[Recovery] = []
        self.rejoined_s: list[float | None] = []
        self.stop_codes: dict[str, int] = {}
        self.began_s = 0.0
        self.observer = Observer(self.history, cluster.controller_addresses, cluster.broker_addresses)
        addresses = cluster.broker_addresses
        route = self.observer.current_route
        self.producers = [Producer(f"p{n}", self.history, addresses, route, pause_s) for n in range(_PRODUCERS)]
        self.consumers: list[Client] = [
            PullConsumer(PULLING, self.history, addresses, route),
            PopConsumer(POPPING, self.history, addresses, route),
        ]
        self.observer.listeners += [client.seat.hear for client in self.clients]
        self.grpc = GrpcProgram(self.history, cluster.grpc_addresses, cluster.data / "logs" / "grpc-client.log")
        self._started: list[Callable[[], None]] = []

    @property
    def clients(self) -> list[Client]:
        return [*self.producers, *self.consumers]

    # ---- the load

    def start(self) -> None:
        """Cluster, topics, clients; returns when every producer has had some success."""
        self._started.append(self.cluster.close)
        self.cluster.start()
        admin = self.cluster.admin
        for topic in (TOPIC, GRPC_TOPIC):
            call_until(lambda topic=topic: admin.create_topic(topic, queues=QUEUES))
            eventually(f"the route of {topic}", lambda topic=topic: bool(admin.queue_offsets(topic)))
        for group in (PULL_GROUP, POP_GROUP, GRPC_GROUP):
            call_until(lambda group=group: admin.create_group(group))
        self.began_s = time.monotonic()
        self.observer.start()
        self._started.append(self.observer.stop)
        eventually("a route for the clients", lambda: self.observer.current_route().address)
        for client in self.clients:
            client.start()
        self._started.append(self._stop_clients)
        self.grpc.start()
        self._started.append(self.grpc.kill)
        eventually("the first sends of every producer", lambda: min(self._sent_ok().values()) >= _WARM_UP, 30)

    def _sent_ok(self) -> dict[str, int]:
        counts = dict.fromkeys((*(each.name for each in self.producers), GRPC_CLIENT), 0)
        for each in self.history.sends():
            if each.outcome is Outcome.OK and each.client in counts:
                counts[each.client] += 1
        return counts

    def _stop_clients(self) -> None:
        for client in self.clients:
            client.stop()

    def close(self) -> None:
        """End everything, in the opposite order."""
        self.network.heal()
        while self._started:
            self._started.pop()()

    def pause(self) -> None:
        """No client does anything; returns when what was begun has ended."""
        for client in (*self.clients, self.grpc):
            client.pause()

    def go_on(self) -> None:
        for client in (*self.clients, self.grpc):
            client.go_on()

    # ---- faults

    def roles(self) -> Roles:
        """Who is what now; waits for a master and a leader."""
        electable = tuple(name for name in self.cluster.broker_names if name not in self.cluster.learner_names)
        controllers = tuple(self.cluster.controller_names)
        return Roles(controllers, electable, self.cluster.master_name(), self.cluster.leader_name())

    @contextmanager
    def window(
        self, name: str, faults: Faults | None = None, *, quiet: bool = False, **details: object
    ) -> Iterator[FaultWindow]:
        """The time in which a fault is in force; ends when the block ends, before anything is healed."""
        told = {**(faults.describe() if faults else {}), **details}
        window = FaultWindow(name, time.monotonic(), details=told, quiet=quiet)
        self.history.faults.append(window)
        self.say(f"{window.start_s - self.began_s:7.2f} s  {name}: {json.dumps(told)}")
        try:
            yield window
        finally:
            window.end_s = time.monotonic()

    def inject(self, name: str, faults: Faults, *, recovers: bool = True) -> FaultWindow:
        """One fault from its beginning to its heal, looked at from both ends; then wait until the group is whole again."""
        roles = self.roles()
        details = {"master": roles.master, "leader": roles.leader}
        with self.window(name, faults, **details) as window:
            injection = Injection(self.cluster, faults, window)
            injection.inject()
            self.hold(self.fault_s)
            injection.verify()
            if recovers and (lost := self._lost_set(faults)):
                # Two died so close together that the first one's successor was the second: nobody else may lead.
                window.details[SET_LOST] = lost
                recovers = False
        self.measure(window, faults if recovers else None, roles)
        injection.heal()
        self.settle()
        injection.await_repair()
        return window

    def _lost_set(self, faults: Faults) -> list[str]:
        """The members of the sync-state set when all of them are killed, frozen or ended; nothing otherwise."""
        down = {*faults.kills, *faults.freezes, *(name for name, rule in faults.disks.items() if rule.ends)}
        newest = max(self.history.views, key=lambda each: each.set_epoch)
        return sorted(newest.members) if set(newest.members) <= down else []

    def measure(self, window: FaultWindow, faults: Faults | None, roles: Roles) -> None:
        """Remember how long sends stood still; there is a limit when the kind of fault has one (`faults` is given)."""
        limit_s, why = limit_of(faults, roles) if faults is not None else (None, "recovery is not promised")
        self.recoveries.append(recovery_of(self.history, window, limit_s, why))

    def hold(self, seconds: float) -> None:
        """Let time pass under load; a client that broke ends the wait with its error."""
        deadline_s = time.monotonic() + seconds
        while (left_s := deadline_s - time.monotonic()) > 0:
            time.sleep(min(left_s, 0.1))
            for client in self.clients:
                if client.failure is not None:
                    raise client.failure

    def settle(self) -> None:
        """The time after a heal: wait for the whole set, then let the rest of the pause pass."""
        healed_s = time.monotonic()
        try:
            self.cluster.wait_in_sync(self.cluster.replica_count, REJOIN_LIMIT_S)
        except AssertionError as error:
            self.say(f"          not whole again: {error}")
            self.rejoined_s.append(None)
        else:
            self.rejoined_s.append(time.monotonic() - healed_s)
        self.hold(max(0.0, self.heal_s - (time.monotonic() - healed_s)))

    def mark(self, what: str) -> None:
        self.history.marks.append((time.monotonic(), what))

    # ---- the end

    def finish(self) -> Aftermath:
        """Stop the producers, let the consumers catch up, read everything back, stop the daemons and look at their disks."""
        for producer in self.producers:
            producer.stop()
        self.grpc.drain()
        for producer in self.producers:
            producer.finish()
        self._wait_until_consumed()
        for client in self.consumers:
            client.stop()
        for client in self.consumers:
            client.finish()
        self._started.remove(self._stop_clients)
        self.grpc.stop()
        self._started.remove(self.grpc.kill)
        self._wait_until_replicated()
        master = self.cluster.broker_addresses[self.cluster.master()]
        records = {queue_id: read_queue(master, TOPIC, queue_id) for queue_id in range(QUEUES)}
        over_grpc = {queue_id: read_queue(master, GRPC_TOPIC, queue_id) for queue_id in range(QUEUES)}
        states = {
            name: document(self.cluster.admin.broker_state(address))
            for name, address in zip(self.cluster.broker_names, self.cluster.broker_addresses, strict=True)
        }
        self._started.remove(self.observer.stop)
        self.observer.stop()
        exits = self.cluster.exits_by_themselves()
        self._stop_daemons()
        logs = {
            name: LogCopy(
                *log_bytes(self.cluster.data_directories[name] / "commitlog", state["minOffset"], state["endOffset"]),
                [(each["epoch"], each["startOffset"]) for each in state["epochs"]],
            )
            for name, state in states.items()
        }
        names = self.cluster.controller_names
        commands = {name: controller_log(self.cluster.data_directories[name], name, names) for name in names}
        return Aftermath(records, over_grpc, logs, commands, exits, self.stop_codes, self.rejoined_s, self.recoveries)

    def _wait_until_consumed(self) -> None:
        """Until every acknowledged message came to all consumers, or none of the missing ones does any more (then a check says
        which they are)."""
        wanted = {True: set[str](), False: set[str]()}
        for each in self.history.sends():
            if each.outcome is Outcome.OK:
                wanted[each.client == GRPC_CLIENT].add(each.message)
        missing = {PULLING: set(wanted[False]), POPPING: set(wanted[False]), GRPC_CLIENT: set(wanted[True])}
        seen = 0
        deadline_s = time.monotonic() + CONSUMED_LIMIT_S
        while any(missing.values()) and time.monotonic() < deadline_s:
            before = sum(map(len, missing.values()))
            upto = len(self.history.deliveries)
            for delivery in self.history.deliveries[seen:upto]:
                missing[delivery.client].discard(name_in(delivery.body))
            seen = upto
            if sum(map(len, missing.values())) < before:
                deadline_s = time.monotonic() + CONSUMED_LIMIT_S
            time.sleep(0.02)

    def _wait_until_replicated(self) -> None:
        def equal() -> bool:
            ends = {
                document(self.cluster.admin.broker_state(address))["endOffset"]
                for address in self.cluster.broker_addresses
            }
            return len(ends) == 1

        eventually("all logs have the same end", equal, REJOIN_LIMIT_S)

    def _stop_daemons(self) -> None:
        """As an operator does: all brokers, then all controllers."""
        with ThreadPoolExecutor(8) as pool:
            for group in (self.cluster.brokers, self.cluster.controllers):
                codes_of = pool.map(lambda each: each.terminate(20), group)
                self.stop_codes |= {each.name: code for each, code in zip(group, codes_of, strict=True)}
