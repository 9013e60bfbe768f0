"""What access control costs a send over remoting: signatures, permissions and TLS, each with and without.

    python -m tests.bench.access [--pairs N] [--seconds S] [--only TEXT] [--mode python|native]

All rows are 1 x 64 with flush in the background, so that the processor decides. The load sends frames that were written, and
signed, before: one that signs is slower than the broker, which then serves few requests a turn. The last row is what one check
of a request that was decoded takes of a processor beside a send: both are measured at the same time, checks in this process and
sends in a broker, so that both have the same part of the machine.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from remoting import frame
from remoting.access.signature import Credentials, SigningKey, is_signed_by
from remoting.client.access_admin import AccessAdmin
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
_CHECKS: Final = 2000


@contextmanager
def broker(access: tuple[str, ...], *, tls: bool, mode: str = "auto") -> Iterator[tuple[Cluster, str]]:
    """A cluster of one broker with the topic and the user made, and the broker's address."""
    directory = Path(tempfile.mkdtemp(prefix="bench"))
    try:
        ports = of_the_appliance(directory / "appliance")[0] if tls else ()
        with Cluster(
            directory / "cluster",
            controllers=1,
            replicas=1,
            broker_settings=(*BACKGROUND, f"kernel.mode={mode}", *access, *ports),
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


def share(program: Path, seconds: float, frames: Path, mode: str) -> tuple[float, float]:
    """CPU time of one check and of one send that is checked, in microseconds."""
    check = _one_check()
    with broker(AUTHENTICATION, tls=False, mode=mode) as (cluster, address), ThreadPoolExecutor(1) as pool:

        def load(at: str, for_s: float = seconds) -> tuple[Sample, int]:
            return run_frames(program, at, frames, seconds=for_s)

        eventually("the user's sends", lambda: _succeeds(lambda: load(address, 0.01)))
        sends = pool.submit(timed, load, address, [cluster.brokers[0].pid])
        taken_us = []
        while not sends.done():
            started_s = time.thread_time()
            for _ in range(_CHECKS):
                check()
            taken_us.append((time.thread_time() - started_s) * 1e6 / _CHECKS)
        return statistics.median(taken_us), sends.result()[0].cpu_us


def _one_check() -> Callable[[], None]:
    """Checks a send of the load."""
    requests: list[frame.Command] = []
    frame.decode_frames(_frames()[0].data, requests)
    key = SigningKey(SECRET.encode())

    def check() -> None:
        assert is_signed_by(requests[0], key)

    return check


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
        name = "1 x 64: the check of a signature, of a send's CPU time"
        if only in name:
            taken = [share(program, seconds, frames, mode) for _ in range(pairs)]
            part = statistics.median(one_us / send_us for one_us, send_us in taken)
            one_us, send_us = (statistics.median(each) for each in zip(*taken, strict=True))
            figure = f"{part:.1%} ({one_us:.2f} of {send_us:.1f} us)"
            rows.append(Row(name, figure, f"< {GOAL_SHARE:.0%}", part < GOAL_SHARE))
            print(f"{name}: {figure}", flush=True)
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
