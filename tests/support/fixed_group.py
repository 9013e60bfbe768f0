"""A group with fixed roles as real processes: one name server, a master and a replica that may stand in for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from remoting import codes
from remoting.client.blocking import AdminClient
from remoting.client.socket_connection import SocketConnection
from tests.support.cluster import Process, eventually, free_ports, make_secret
from tests.support.documents import document

TOPIC = "Orders"


class FixedGroup:
    """One name server, a master and a replica."""

    def __init__(self, root: Path) -> None:
        name_server, *ports = free_ports(7)
        self.name_server = f"127.0.0.1:{name_server}"
        self.listen = [f"127.0.0.1:{port}" for port in ports[:2]]
        secret = str(make_secret(root))
        roles = ("roles=fixed", "total_replicas=2", "acting_master=true", "min_in_sync_replicas=1")
        self.processes = [
            Process(
                "name server",
                [
                    *(
                        "-m",
                        "controllerd",
                        "--id",
                        "n0",
                        "--peers",
                        f"n0={self.name_server}",
                        "--data",
                        str(root / "n0"),
                    ),
                    *("--set", "nameserver.acting_master=true", "--set", "nameserver.notify_min_broker_id=true"),
                ],
                root / "n0.log",
            )
        ]
        for broker_id in range(2):
            own = (f"broker_id={broker_id}", *((f"fixed_master={self.listen[0]}",) if broker_id else ()))
            arguments = ["-m", "brokerd", "--listen", self.listen[broker_id], "--controllers", self.name_server]
            arguments += ["--ha-listen", f"127.0.0.1:{ports[2 + broker_id]}", "--replication-secret", secret]
            arguments += ["--grpc-listen", f"127.0.0.1:{ports[4 + broker_id]}", "--data", str(root / f"b{broker_id}")]
            for assignment in (*roles, *own):
                arguments += ["--set", f"replication.{assignment}"]
            self.processes.append(Process(f"b{broker_id}", arguments, root / f"b{broker_id}.log"))
        self.admin = AdminClient([self.name_server], timeout_ms=2000)

    @property
    def master(self) -> Process:
        return self.processes[1]

    def state(self, broker_id: int) -> dict[str, Any]:
        return document(self.admin.broker_state(self.listen[broker_id]))

    def in_sync(self) -> bool:
        return self.state(0)["syncStateSet"] == [0, 1]

    def route(self) -> tuple[dict[str, str], int]:
        """Addresses by id, and the permission, as clients see them."""
        with SocketConnection(self.name_server, timeout_ms=2000) as connection:
            route = orjson.loads(connection.call(codes.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}).body)
        return route["brokerDatas"][0]["brokerAddrs"], route["queueDatas"][0]["perm"]

    def call(self, broker_id: int, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Any:
        with SocketConnection(self.listen[broker_id], timeout_ms=2000) as connection:
            return connection.call(code, ext or {}, body)

    def start(self) -> None:
        """Start everything, make the topic, and wait until it is routed."""
        for process in self.processes:
            process.start()
        eventually("both brokers in the set", self.in_sync)
        eventually("the topic", lambda: self.admin.create_topic(TOPIC, queues=1)[0].outcome == "CONFIRMED")
        eventually("the topic's route", lambda: self.route()[1] == 6)

    def __enter__(self) -> FixedGroup:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            process.close()
