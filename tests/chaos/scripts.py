"""The scenarios that are more than one set of faults from one moment to another: each plays one round on a stage.

A script notes as evidence that what it is about really happened (the proposal was applied while its answer was lost, the log was
cut, the disk was full), so that it cannot pass without it.
"""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from pathlib import Path
from typing import Final

from remoting import codes, frame
from remoting.errors import RequestError
from remoting.frame import Command
from remoting.transport.client import split_address
from tests.chaos.addresses import Link, broker_address
from tests.chaos.asking import elect, id_of, members, state_of
from tests.chaos.clients import QUEUES, outcome_of, send_fields
from tests.chaos.history import FaultWindow, Kind, Operation, Outcome, body_of, message_name
from tests.chaos.injection import Injection
from tests.chaos.plan import Faults, Roles, cut, kill_master, part_master
from tests.chaos.stage import REJOIN_LIMIT_S, Stage
from tests.support.cluster import comes_true, eventually

_SHRINK_LIMIT_S: Final = 20.0
_FREEZE_S: Final = 14.0
_QUEUED: Final = 300
_BALLAST_BYTES: Final = 1 << 20
_ATTEMPTS: Final = 6
_OWN_RECORDS_BYTES: Final = 4096
# Shorter than the silence after which the master would count as dead
_PROPOSAL_LIMIT_S: Final = 1.5


def kill_in_the_middle_of_a_proposal(stage: Stage, name: str) -> None:
    """X3. A replica returns; the master proposes it; the controllers apply that, and their answer is lost; the master dies."""
    with stage.window(name) as window:
        for attempt in range(1, _ATTEMPTS + 1):
            roles = stage.roles()
            returning = stage.rng.choice(roles.replicas)
            stage.say(f"          attempt {attempt}: {returning} returns to {roles.master}")
            if _killed_amid_the_proposal(stage, window, roles, returning):
                window.note(
                    f"attempt {attempt}: the set was applied while its answer was lost, and {roles.master} killed", True
                )
                break
            stage.cluster.wait_in_sync(stage.cluster.replica_count, REJOIN_LIMIT_S)
        else:
            window.note(f"{_ATTEMPTS} attempts: no proposal was applied while its answer was lost", False)
        stage.hold(stage.fault_s / 2)
    if not stage.cluster.daemons[roles.master].is_running:
        stage.cluster.daemons[roles.master].start()
    stage.measure(window, None, roles)
    stage.settle()


def _killed_amid_the_proposal(stage: Stage, window: FaultWindow, roles: Roles, returning: str) -> bool:
    """One attempt: whether the controllers' answers were cut off between the proposal's sending and its answer."""
    answers_lost = Faults(links=cut(Link(each, roles.master) for each in roles.controllers))
    broker_id = id_of(stage, returning)
    stage.cluster.daemons[returning].kill()
    eventually("the set without it", lambda: returning not in members(stage), _SHRINK_LIMIT_S)
    injection = Injection(stage.cluster, answers_lost, window)
    stage.cluster.daemons[returning].start()
    _until_caught_up(stage, returning, roles.master)
    stage.network.impair(answers_lost.links)
    knew = broker_id in state_of(stage, roles.master)["syncStateSet"]
    applied = comes_true(lambda: returning in members(stage), _PROPOSAL_LIMIT_S)
    happened = not knew and applied and broker_id not in state_of(stage, roles.master)["syncStateSet"]
    if happened:
        stage.cluster.daemons[roles.master].kill()
        window.details |= answers_lost.describe() | {"killed": [roles.master], "returning": returning}
        injection.look("after the kill")
        injection.verify()
    injection.heal()
    return happened


def _until_caught_up(stage: Stage, name: str, master: str) -> None:
    """Wait until the replica has nearly all of the master's log; the proposal comes at the next moment."""

    def near() -> bool:
        return state_of(stage, name)["endOffset"] > 0 and (
            state_of(stage, master)["confirmOffset"] - state_of(stage, name)["endOffset"] < 4096
        )

    eventually(f"{name} copies the log", near, REJOIN_LIMIT_S)


def switch_twice_without_writes(stage: Stage, name: str) -> None:
    """X4. Two elections while no client writes, then the new master is isolated with its producers and diverges."""
    stage.pause()
    roles = stage.roles()
    first, second = roles.replicas
    with stage.window(f"{name} switches", quiet=True, master=roles.master, elected=[first, second]) as window:
        before = _quiet_end(stage)
        elect(stage, first)
        stage.cluster.wait_in_sync(stage.cluster.replica_count, REJOIN_LIMIT_S)
        between = _quiet_end(stage)
        elect(stage, second)
        stage.cluster.wait_in_sync(stage.cluster.replica_count, REJOIN_LIMIT_S)
        after = _quiet_end(stage)
        own_bytes = max(between - before, after - between)
        window.note(
            f"two elections, and the log ended at {before}, {between}, {after}: only what a new master writes for itself",
            own_bytes <= _OWN_RECORDS_BYTES,
        )
        stage.go_on()
        stage.hold(1)
    stage.inject(f"{name} divergence", part_master(stage.rng, stage.roles()))


def _quiet_end(stage: Stage) -> int:
    """Where all logs end when nothing is written any more."""

    def same() -> tuple[int] | None:
        ends = {state_of(stage, name)["endOffset"] for name in stage.cluster.broker_names}
        return (ends.pop(),) if len(ends) == 1 else None

    return eventually("equal logs", same)[0]


def restart_master_and_leader_together(stage: Stage, name: str) -> None:
    """X5. Both are killed and started again at once, again and again while the fault lasts."""
    roles = stage.roles()
    with stage.window(name, master=roles.master, leader=roles.leader) as window:
        deadline_s = time.monotonic() + stage.fault_s
        rounds = 0
        while time.monotonic() < deadline_s:
            now = stage.roles()
            pair = [stage.cluster.daemons[each] for each in (now.master, now.leader)]
            for daemon in pair:
                daemon.strike()
            for daemon in pair:
                daemon.kill()
            window.note(f"{now.master} and {now.leader} are gone at the same time", all(each.is_gone for each in pair))
            for daemon in pair:
                daemon.start()
            stage.mark(f"{now.master}, {now.leader} restarted")
            rounds += 1
            stage.cluster.wait_in_sync(2, REJOIN_LIMIT_S)
        window.note(f"{rounds} restarts of both", rounds > 0)
        stage.hold(1)
    stage.measure(window, None, roles)
    stage.settle()


def kill_after_truncation(stage: Stage, name: str) -> None:
    """X6. An isolated master gathers what nobody acknowledges; when it comes back and has cut that off, it is killed."""
    roles = stage.roles()
    old = stage.cluster.daemons[roles.master]
    faults = part_master(stage.rng, roles)
    with stage.window(name, faults, master=roles.master) as window:
        injection = Injection(stage.cluster, faults, window)
        injection.inject()
        eventually("another master", lambda: stage.cluster.master_name() != roles.master, 20)
        stage.hold(stage.fault_s / 2)
        diverged = state_of(stage, roles.master)
        beyond = diverged["endOffset"] - diverged["confirmOffset"]
        window.note(f"{roles.master} holds {beyond} bytes that nobody acknowledged", beyond > 0)
        injection.verify()
        seen = 0

        def truncated() -> bool:
            nonlocal seen
            seen += 1
            return "cutting the log" in _log_since(old.log_path, position)

        position = old.log_path.stat().st_size
        injection.heal()
        was_cut = comes_true(truncated, 20)
        old.kill()
        window.note(f"{roles.master} was killed when its log said that it had cut (looked {seen} times)", was_cut)
        stage.hold(1)
    old.start()
    stage.measure(window, None, roles)
    stage.settle()


def _log_since(path: Path, position: int) -> str:
    with open(path, "rb") as file:
        file.seek(position)
        return file.read().decode(errors="replace")


def freeze_with_queued_sends(stage: Stage, name: str) -> None:
    """X7. The master is stopped with hundreds of requests in its sockets, and goes on after another one was elected."""
    roles = stage.roles()
    faults = Faults(freezes=(roles.master,))
    hold_s = max(_FREEZE_S, stage.fault_s)
    with stage.window(name, faults, master=roles.master) as window:
        pipeline = Pipeline(stage, roles.master, f"q{len(stage.history.faults)}")
        pipeline.send(_QUEUED // 3)
        injection = Injection(stage.cluster, faults, window)
        injection.inject()
        pipeline.send(_QUEUED - _QUEUED // 3)
        stage.hold(hold_s)
        injection.verify()
        eventually("another master", lambda: stage.cluster.master_name() != roles.master, 10)
    stage.measure(window, faults, roles)
    injection.heal()
    answered = pipeline.finish()
    window.note(
        f"{pipeline.sent} sends were queued; {answered} were answered after the thaw or before",
        pipeline.sent == _QUEUED,
    )
    stage.settle()


class Pipeline:
    """Sends without waiting for answers, over one connection; records them when the answers or the end came."""

    def __init__(self, stage: Stage, broker: str, client: str) -> None:
        self._stage = stage
        self._broker = broker
        self._client = client
        self._socket = socket.create_connection(split_address(broker_address(broker)), 2)
        self._began: dict[int, tuple[str, int, float]] = {}
        self._thread = threading.Thread(target=self._listen, name=client, daemon=True)
        self._answered = 0
        self._thread.start()

    @property
    def sent(self) -> int:
        return self._answered + len(self._began)

    def send(self, count: int) -> None:
        for _ in range(count):
            number = self.sent
            key = f"{self._client}k0"
            name = message_name(self._client, key, number)
            queue_id = QUEUES - 1
            self._began[number] = name, queue_id, time.monotonic()
            request = frame.encode_request(
                codes.SEND_MESSAGE_V2, number, send_fields(name, key, queue_id), body_of(name)
            )
            self._socket.sendall(request)

    def finish(self, timeout_s: float = 10) -> int:
        """Wait for the last answer, or for the end of the connection; what has no answer is unknown. Returns how many had one."""
        self._thread.join(timeout_s)
        self._socket.close()
        self._thread.join(timeout_s)
        for name, queue_id, start_s in self._began.values():
            self._record(name, queue_id, start_s, Outcome.UNKNOWN, -1, "no answer")
        return self._answered

    def _listen(self) -> None:
        rest = b""
        while self._answered < _QUEUED:
            try:
                data = self._socket.recv(1 << 16)
            except TimeoutError:
                continue
            except OSError:
                return
            if not data:
                return
            rest += data
            answers: list[Command] = []
            rest = rest[frame.decode_frames(rest, answers) :]
            for answer in answers:
                self._take(answer)

    def _take(self, answer: Command) -> None:
        name, queue_id, start_s = self._began.pop(answer.opaque)
        self._answered += 1
        outcome = outcome_of(answer)
        offset = int(answer.ext["queueOffset"]) if outcome is Outcome.OK else -1
        self._record(
            name, queue_id, start_s, outcome, offset, "" if outcome is Outcome.OK else f"{answer.code} {answer.remark}"
        )

    def _record(self, name: str, queue_id: int, start_s: float, outcome: Outcome, offset: int, detail: str) -> None:
        self._stage.history.operations.append(
            Operation(
                self._client,
                Kind.SEND,
                start_s,
                time.monotonic(),
                outcome,
                self._broker,
                name,
                queue_id,
                offset,
                detail,
            )
        )


def fill_the_masters_disk(stage: Stage, name: str) -> None:
    """X9. Not a byte is left where the master keeps its log. It may say no to sends until another one leads, which happens by
    itself; nobody loses what was said yes to."""
    small = next(
        each for each in stage.cluster.broker_names if stage.cluster.data_directories[each] != stage.cluster.data / each
    )
    if stage.cluster.master_name() != small:
        elect(stage, small)
        stage.cluster.wait_in_sync(stage.cluster.replica_count, REJOIN_LIMIT_S)
    roles = stage.roles()
    directory = stage.cluster.data_directories[small].parent
    ballast = directory / "ballast"
    with stage.window(name, master=roles.master, full=small) as window:
        _fill(ballast)
        window.note("the disk takes no byte more at the start", _is_full(ballast))
        stage.hold(stage.fault_s)
        _fill(ballast)
        window.note("the disk takes no byte more at the end", _is_full(ballast))
        felt = [
            each for each in stage.history.sends() if each.start_s >= window.start_s and each.outcome is not Outcome.OK
        ]
        window.note(f"{len(felt)} sends felt it, and another master leads", stage.cluster.master_name() != small)
    stage.measure(window, None, roles)
    ballast.unlink()
    stage.settle()


def _fill(ballast: Path) -> None:
    block = bytes(_BALLAST_BYTES)
    with open(ballast, "ab", buffering=0) as file:
        while len(block):
            try:
                if file.write(block) < len(block):
                    block = block[: len(block) // 2]
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                block = block[: len(block) // 2]


def _is_full(ballast: Path) -> bool:
    fd = os.open(ballast.with_name("probe"), os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        os.write(fd, b"x")
    except OSError as error:
        return error.errno == errno.ENOSPC
    finally:
        os.close(fd)
        ballast.with_name("probe").unlink()
    return False


def restart_everybody_in_turn(stage: Stage, name: str) -> None:
    """X12. An upgrade: each daemon is told to stop, ends well, and is started again when the group is whole."""
    roles = stage.roles()
    with stage.window(name, master=roles.master, leader=roles.leader) as window:
        for each in (*roles.controllers, *roles.brokers):
            daemon = stage.cluster.daemons[each]
            code = daemon.terminate()
            window.note(f"{each} ended with {code}", code == 0 and daemon.is_gone)
            stage.mark(f"{each} restarted")
            daemon.start()
            stage.cluster.leader()
            stage.cluster.wait_in_sync(stage.cluster.replica_count, REJOIN_LIMIT_S)
    stage.measure(window, kill_master(stage.rng, roles), roles)
    stage.settle()


def elect_again_and_again(stage: Stage, name: str) -> None:
    """X13. An administrator moves the master every two seconds."""
    roles = stage.roles()
    elected = []
    with stage.window(name, master=roles.master) as window:
        deadline_s = time.monotonic() + stage.fault_s
        while time.monotonic() < deadline_s:
            target = stage.rng.choice(stage.roles().replicas)
            try:
                elect(stage, target)
                elected.append(target)
            except RequestError as error:
                stage.say(f"          {target} was not elected: {error}")
            stage.hold(1)
            stage.cluster.wait_in_sync(stage.cluster.replica_count, REJOIN_LIMIT_S)
        window.note(f"{len(elected)} elections: {', '.join(elected)}", len(elected) >= 2)
    stage.measure(window, kill_master(stage.rng, roles), roles)
    stage.settle()


def kill_beside_a_learner(stage: Stage, name: str) -> None:
    """X14. The master dies; the learner, which has the whole log, is no candidate."""
    stage.inject(name, kill_master(stage.rng, stage.roles()))
    (learner,) = stage.cluster.learner_names
    window: FaultWindow = stage.history.faults[-1]
    seen = [view for view in stage.history.views if learner in view.members or view.master == learner]
    window.note("the learner was never in the sync-state set and never master", not seen)
    has_log = state_of(stage, learner)["endOffset"] > 0
    window.note("the learner copies the log", has_log)
