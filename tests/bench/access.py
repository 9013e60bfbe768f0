"""What access control costs a send over remoting: signatures, permissions and TLS, each with and without.

    python -m tests.bench.access [--pairs N] [--seconds S] [--only TEXT] [--mode python|native]

All rows are 1 x 64 with flush in the background, so that the processor decides. The load sends frames that were written, and
signed, before: one that signs is slower than the broker, which then serves few requests a turn.

The last rows are what one check takes of a processor beside a send: both are measured at the same time, checks in this process
and sends in a broker, so that both have the same part of the machine. A check is all that a broker does of it
(`brokerd/processors/sending/admission.py`): what is covered is found, the key looked up, and the signature computed and compared,
for a buffer of 64 sends and for one with a single one. What was read for it is not read again when the sends are laid out; so
what counts is a check and the kernel behind it less the kernel alone, of the same sends, in turns. What `let_in` takes by itself
is a row of its own. Where loops run in Python, it is the check of a decoded request. Beside them stands SHA-1 alone, by OpenSSL,
over the same bytes. These rows are taken with fdatasync, too, as brokers do by default.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

from brokerd.metadata.configs import TopicConfig
from brokerd.native.library import Library, choose
from brokerd.native.settings import PYTHON
from brokerd.processors.sending.admission import Admission
from brokerd.sending.boundary import Source
from brokerd.sending.native_kernel import NativeKernel
from brokerd.sending.readings import Reading
from brokerd.store.queues.queue_offsets import TakenOffsets
from brokerd.store.run import Run
from remoting import frame
from remoting.access.model import AccessState, User
from remoting.access.sealing import seal
from remoting.access.signature import Credentials, SigningKey, covered, is_signed_by
from remoting.client.access_admin import AccessAdmin
from remoting.guarding.guard import AccessSettings, Guard
from remoting.record.hosts import pack_host
from remoting.transport.connection import RemotingConnection
from remoting.transport.limits import ConnectionLimits
from tests.bench.harness import Row, Sample, in_pairs, load_program, run_frames
from tests.bench.send_frames import Frame, as_json, single
from tests.bench.sends import BACKGROUND, TOPIC, check_stored, timed
from tests.support.certificates import of_the_appliance
from tests.support.cluster import Cluster, eventually
from tests.support.workload import call_until

KEY: Final = "bench"
SECRET: Final = "the secret of the bench"
OVER_TLS: Final = {"LOAD_TLS": "1"}
AUTHENTICATION: Final = ("access.authentication=true",)
AUTHORIZATION: Final = (*AUTHENTICATION, "access.authorization=true")
GOAL_SHARE: Final = 0.10  # of a send's CPU time
QUEUES: Final = 8
SHARES: Final = "1 x 64, of a signed send's CPU time"
FLUSHES: Final[Mapping[str, tuple[str, ...]]] = {"background": BACKGROUND, "fdatasync, the default": ()}
MANY: Final = "64 in a buffer"
_CHECKS: Final = 2048
HOST: Final = pack_host("127.0.0.1", 10911)
NOW_MS: Final = 1_700_000_000_000


@contextmanager
def broker(
    access: tuple[str, ...], *, tls: bool, mode: str = "auto", flush: tuple[str, ...] = BACKGROUND
) -> Iterator[tuple[Cluster, str]]:
    """A cluster of one broker with the topic and the user made, and the broker's address."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        ports = of_the_appliance(directory / "appliance")[0] if tls else ()
        with Cluster(
            directory / "cluster",
            controllers=1,
            replicas=1,
            broker_settings=(*flush, f"kernel.mode={mode}", *access, *ports),
            controller_settings=access,
        ) as cluster:
            cluster.start()
            call_until(lambda: cluster.admin.create_topic(TOPIC, queues=QUEUES))
            eventually("the topic's route", lambda: bool(cluster.admin.queue_offsets(TOPIC)))
            if access:
                admin = AccessAdmin(cluster.admin)
                admin.create_user(KEY, SECRET, "Normal", "enable")
                allowed = {"resource": f"Topic:{TOPIC}", "actions": ["Pub"], "decision": "Allow"}
                admin.put_permission(KEY, allowed)
            yield cluster, cluster.broker_addresses[cluster.master()]
    finally:
        shutil.rmtree(directory)


def _frames() -> list[Frame]:
    """Sends to each queue, signed. The messages have one name: it is signed, and each request sends one of these frames."""
    credentials = Credentials(KEY, SECRET.encode())

    def signed(code: int, flag: int, fields: Mapping[str, str], body: bytes) -> bytes:
        return as_json()(code, flag, credentials.sign(fields, body), body)

    properties = "UNIQ_KEY\x017F00000100002A9F0000000000000001\x02WAIT\x01true\x02"
    return [single(properties, write=signed, fields={"e": str(queue)}) for queue in range(QUEUES)]


def measured(
    program: Path,
    seconds: float,
    frames: Path,
    access: tuple[str, ...] = (),
    environment: Mapping[str, str] | None = None,
    mode: str = "auto",
) -> Callable[[], Sample]:
    """A measurement of a fresh cluster; the stored count must be the acknowledged one."""
    environment = environment or {}

    def load(address: str, for_s: float) -> tuple[Sample, int]:
        return run_frames(program, address, frames, seconds=for_s, environment=environment)

    def measure() -> Sample:
        with broker(access, tls="LOAD_TLS" in environment, mode=mode) as (cluster, address):
            if access:  # the broker hears of the user a moment later
                eventually("the user's sends", lambda: _succeeds(lambda: load(address, 0.01)))
            before = _stored(cluster)
            sample, acknowledged = timed(lambda at: load(at, seconds), address, [cluster.brokers[0].pid])
            check_stored(before + acknowledged, lambda: _stored(cluster))
            return sample

    return measure


def _stored(cluster: Cluster) -> int:
    return sum(each.max_offset for each in cluster.admin.queue_offsets(TOPIC))


def _succeeds(load: Callable[[], object]) -> bool:
    try:
        load()
    except RuntimeError:
        return False
    return True


def shares(
    program: Path, seconds: float, frames: Path, mode: str, flush: tuple[str, ...]
) -> tuple[dict[str, float], float]:
    """CPU time of one of each of the checks, and of one send that is checked, in microseconds."""
    checks = _checks(mode)
    taken_us: dict[str, list[float]] = {name: [] for name in checks}
    with (
        broker(AUTHENTICATION, tls=False, mode=mode, flush=flush) as (cluster, address),
        ThreadPoolExecutor(1) as pool,
    ):

        def load(at: str, for_s: float = seconds) -> tuple[Sample, int]:
            return run_frames(program, at, frames, seconds=for_s)

        eventually("the user's sends", lambda: _succeeds(lambda: load(address, 0.01)))
        sends = pool.submit(timed, load, address, [cluster.brokers[0].pid])
        while not sends.done():
            for name, check in checks.items():
                taken_us[name].append(check.taken_us())
        return {name: statistics.median(each) for name, each in taken_us.items()}, sends.result()[0].cpu_us


class _Check(NamedTuple):
    """What is measured: something with a check less the same without, of so many sends."""

    checked: Callable[[], object]
    count: int
    unchecked: Callable[[], object] | None = None

    def taken_us(self) -> float:
        """CPU time of the check of one send."""
        taken_us = self._timed(self.checked)
        return taken_us if self.unchecked is None else taken_us - self._timed(self.unchecked)

    def _timed(self, work: Callable[[], object]) -> float:
        rounds = _CHECKS // self.count
        started_s = time.thread_time()
        for _ in range(rounds):
            work()
        return (time.thread_time() - started_s) * 1e6 / (rounds * self.count)


def _checks(mode: str) -> dict[str, _Check]:
    """What is measured, by its name."""
    written = [each.data for each in _frames()]
    requests: list[frame.Command] = []
    frame.decode_frames(written[0], requests)
    key, [request] = SigningKey(SECRET.encode()), requests
    bytes_covered = "".join(covered(request.ext, None)).encode() + request.body
    checks = {"SHA-1 alone, by OpenSSL": _Check(lambda: hashlib.sha1(bytes_covered).digest(), 1)}
    if mode == PYTHON:
        return checks | {"the check of a decoded request": _Check(lambda: _must(is_signed_by(request, key)), 1)}
    library = choose(mode).library
    if library is None:
        raise RuntimeError("there is no library in C here: measure with --mode python")
    admission, connection, kernel = _admission(library), asyncio.run(_connection()), _kernel(library)
    for count, how_many in ((64, MANY), (1, "one in a buffer")):
        buffer = b"".join((written * count)[:count])
        let_in = partial(_let_in, admission, connection, buffer, count)

        def checked(buffer: bytes = buffer, count: int = count, let_in: Callable[[], Reading | None] = let_in) -> None:
            _lay_out(kernel, buffer, count, let_in())

        unchecked = partial(_lay_out, kernel, buffer, count, None)
        checks[f"the check of a signature, {how_many}"] = _Check(checked, count, unchecked)
        checks[f"the same, with all that is read for it, {how_many}"] = _Check(let_in, count)
    return checks


async def _connection() -> RemotingConnection:
    connection = RemotingConnection({}, ConnectionLimits())
    connection.prove(KEY)
    return connection


def _let_in(admission: Admission, connection: RemotingConnection, buffer: bytes, count: int) -> Reading | None:
    admission.begin_turn()
    let_in, is_other_next, reading = admission.let_in(connection, buffer, count)
    _must((let_in, is_other_next) == (count, False))
    return reading


def _lay_out(kernel: NativeKernel, buffer: bytes, count: int, reading: Reading | None) -> None:
    run = Run(0, 1 << 30, 1 << 20, NOW_MS, TakenOffsets({}), True)
    [taken] = kernel.take(run, [Source(buffer, 0, HOST, count, reading)])
    _must(len(taken.opaques) == count)


def _must(holds: bool) -> None:
    if not holds:
        raise AssertionError("a send of the load is not taken for signed")


def _kernel(library: Library) -> NativeKernel:
    kernel = NativeKernel(library, HOST)
    kernel.topics_changed({TOPIC: TopicConfig(TOPIC, QUEUES, QUEUES)})
    return kernel


def _admission(library: Library) -> Admission:
    """As of a broker whose users are those of the load."""
    cluster_secret = b"the cluster's secret of the bench"
    guard = Guard(AccessSettings(authentication=True), "c", (cluster_secret,), lambda: 0)
    user = User(KEY, seal(cluster_secret, KEY, SECRET, bytes(12)), "Normal", "enable")
    guard.update(AccessState(1, {KEY: user}, {}))
    return Admission(guard, library)


def _share_rows(name: str, taken: list[tuple[dict[str, float], float]]) -> list[Row]:
    rows = []
    for check in taken[0][0]:
        part = statistics.median(each_us[check] / send_us for each_us, send_us in taken)
        one_us = statistics.median(each_us[check] for each_us, _ in taken)
        send_us = statistics.median(send_us for _, send_us in taken)
        goal = check in (f"the check of a signature, {MANY}", f"the same, with all that is read for it, {MANY}")
        row = Row(
            f"{name}: {check}",
            f"{part:.1%} ({one_us:.2f} of {send_us:.1f} us)",
            f"< {GOAL_SHARE:.0%}" if goal else "",
            part < GOAL_SHARE if goal else None,
        )
        rows.append(row)
        print(f"{row.name}: {row.figure}", flush=True)
    return rows


def run(pairs: int, seconds: float, only: str = "", mode: str = "auto") -> list[Row]:
    """All rows whose name contains `only`."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as directory, load_program(secure=True) as program:
        frames = Path(directory) / "frames"
        frames.write_bytes(b"".join(each.packed() for each in _frames()))

        def of(access: tuple[str, ...], environment: Mapping[str, str] | None = None) -> Callable[[], Sample]:
            return measured(program, seconds, frames, access, environment, mode)

        off, signed = of(()), of(AUTHENTICATION)
        for name, a, b, goal in (
            ("1 x 64: signatures checked / not", signed, off, None),
            ("1 x 64: permissions checked, too / signatures alone", of(AUTHORIZATION), signed, 0.9),
            ("1 x 64: TLS / plaintext", of((), OVER_TLS), off, None),
            ("1 x 64: all of them / none", of(AUTHORIZATION, OVER_TLS), off, None),
        ):
            if only in name:
                rows.append(in_pairs(name, pairs, a, b, goal).row)
        if only in SHARES:
            for flush, settings in FLUSHES.items():
                taken = [shares(program, seconds, frames, mode, settings) for _ in range(pairs)]
                rows.extend(_share_rows(f"{SHARES}, {flush}", taken))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--mode", default="auto", choices=("auto", "native", "python"))
    options = parser.parse_args()
    run(options.pairs, options.seconds, options.only, options.mode)


if __name__ == "__main__":
    main()
