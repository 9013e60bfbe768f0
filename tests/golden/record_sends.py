"""Has the original's clients write the frames under `sends/`, as they send them to a broker of ours.

    python -m tests.golden.record_sends [CLIENT ...]

Run once; the files are committed. Each has one send of each kind that its client makes, one behind the other, as it came.
"""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from remoting import codes
from remoting.frame import Command, bytes_wanted, decode_frames
from remoting.transport.connection import RemotingConnection
from tests.interop import programs
from tests.interop.apache import Apache
from tests.interop.programs import Program
from tests.support.cluster import Cluster, Process
from tests.support.workload import call_until

GOLDEN: Final = Path(__file__).parent / "sends"
_SENDS: Final = (codes.SEND_MESSAGE, codes.SEND_MESSAGE_V2, codes.SEND_BATCH_MESSAGE)
_CHECKS: Final[Mapping[str, Sequence[str]]] = {
    "java-4": ("send-sync", "send-oneway", "send-batch", "send-properties", "send-compressed-zlib", "delay-level",
               "push-orderly", "transaction-commit"),
    "java-5": ("send-sync", "send-oneway", "send-batch", "send-properties", "send-compressed-zlib", "delay-level",
               "push-orderly", "transaction-commit", "send-compressed-lz4", "send-auto-batch"),
    "go": ("send-sync", "send-oneway", "send-batch", "send-properties", "send-compressed", "delay-level", "transaction"),
    "cpp": ("send-sync", "send-oneway", "send-orderly", "delay-level"),
    "node": ("send", "send-compressed", "delay-level"),
}  # fmt: skip
_COMPACT: Final = ("rocketmq.serialize.type=ROCKETMQ",)


def _program(client: str, directory: Path) -> tuple[Program, Sequence[str]]:
    """What drives a client, and which of its checks send what is wanted."""
    generation = client.removesuffix("-compact")
    makers: Mapping[str, Callable[[], Program]] = {
        "go": lambda: programs.go(directory),
        "cpp": programs.cpp,
        "node": programs.node,
    }
    make = makers.get(generation)
    if make is not None:
        return make(), _CHECKS[generation]
    properties = _COMPACT if client.endswith("compact") else ()
    return programs.java(generation, "Checks", Apache.find(), directory, properties), _CHECKS[generation]


def record(client: str) -> None:
    """Run the client's program against a broker that keeps what it reads, and write its sends."""
    with tempfile.TemporaryDirectory() as work:
        root = Path(work)
        program, checks = _program(client, root)
        kept = root / "kept"
        kept.mkdir()
        with Cluster(root / "cluster", controllers=1, replicas=1) as cluster:
            [broker] = cluster.brokers
            arguments = broker._command[3:]
            cluster.brokers[0] = Process(
                "b0", ["-m", "tests.golden.record_sends", "--broker", str(kept), *arguments], root / "log"
            )
            cluster.start()
            for check in checks:
                call_until(lambda name=f"{client}-{check}": cluster.admin.create_topic(name, queues=2))
            names, master = ";".join(cluster.controller_addresses), cluster.broker_addresses[0]
            words = {"node": [names, client], "cpp": [names, client, master]}.get(
                client, [names, master, client, *checks]
            )
            print(program.run(words, root / "run").output)
        _write(client, kept)


def _write(client: str, kept: Path) -> None:
    """One frame of each kind: topic, code, and which fields it has."""
    frames: dict[object, bytes] = {}
    for path in sorted(kept.iterdir()):
        data = path.read_bytes()
        while len(data) >= bytes_wanted(data) and len(data) > 8:
            size = bytes_wanted(data)
            commands: list[Command] = []
            decode_frames(data[:size], commands)
            for command in commands:
                topic = command.ext.get("b") or command.ext.get("topic", "")
                if command.code in _SENDS and topic.startswith(client):
                    frames.setdefault((topic, command.code, command.flag, len(command.ext)), data[:size])
            data = data[size:]
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / client).write_bytes(b"".join(frames[key] for key in sorted(frames, key=str)))
    print(client, [str(key) for key in sorted(frames, key=str)])


def serve(directory: str) -> None:
    """Be a broker that appends what each connection reads to a file of its own."""
    received = RemotingConnection.data_received

    def keep(self: RemotingConnection, data: bytes) -> None:
        with open(Path(directory) / f"{self.peer_port}", "ab") as file:
            file.write(data)
        received(self, data)

    RemotingConnection.data_received = keep  # type: ignore[method-assign]
    runpy.run_module("brokerd", run_name="__main__", alter_sys=True)


def main() -> None:
    if sys.argv[1:2] == ["--broker"]:
        directory = sys.argv[2]
        sys.argv[1:3] = []
        serve(directory)
        return
    for client in sys.argv[1:] or (*_CHECKS, "java-4-compact", "java-5-compact"):
        record(client)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
