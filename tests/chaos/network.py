"""The run's network: a namespace per node, veth pairs on one bridge, links that can be impaired, probes that show it.

The bridge is in a namespace of its own and has no way out: nothing outside the run reaches a daemon of it, or is reached.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Final

from tests.chaos.addresses import NODES, Link, ip_of
from tests.chaos.impair import Impairment
from tests.chaos.namespaces import inside, ip_batch, namespace_of
from tests.support.cluster import ROOT

PROBE_PORT: Final = 9
_SWITCH: Final = "sw"


class Network:
    """Made once for a run; `close` ends the program that impairs links (namespaces go with the run's directory)."""

    def __init__(self, prefix: str, seed: int) -> None:
        self.prefix = prefix
        self._probes: dict[str, socket.socket] = {}
        self._impaired: dict[Link, Impairment] = {}
        self._probed = 0
        self._build()
        self._impairer = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.impair", prefix, str(seed)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.impair({})  # answered when it is ready

    def _build(self) -> None:
        switch = namespace_of(self.prefix, _SWITCH)
        ip_batch(None, [f"netns add {namespace_of(self.prefix, node)}" for node in (_SWITCH, *NODES)])
        ip_batch(switch, ["link add br0 type bridge forward_delay 0", "link set br0 up"])
        for node in NODES:
            namespace = namespace_of(self.prefix, node)
            ip_batch(switch, [f"link add p-{node} type veth peer name eth0 netns {namespace}"])
            ip_batch(switch, [f"link set p-{node} master br0 up"])
            ip_batch(namespace, ["link set lo up", "link set eth0 up"])
            self._open_loopback(node, namespace)

    def _open_loopback(self, node: str, namespace: str) -> None:
        """Route this network's part of 127/8 over the bridge instead of taking all of it for the node itself."""
        with inside(namespace):
            for device in ("all", "eth0"):
                for name, value in (("route_localnet", "1"), ("rp_filter", "0")):
                    with open(f"/proc/sys/net/ipv4/conf/{device}/{name}", "w") as sysctl:
                        sysctl.write(value)
        ip_batch(
            namespace,
            ["addr del 127.0.0.1/8 dev lo", "addr add 127.0.0.1/32 dev lo", f"addr add {ip_of(node)}/24 dev eth0"],
        )
        with inside(namespace):
            probe = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        probe.bind((ip_of(node), PROBE_PORT))
        probe.setblocking(False)
        self._probes[node] = probe

    def namespace(self, node: str) -> str:
        return namespace_of(self.prefix, node)

    def close(self) -> None:
        for probe in self._probes.values():
            probe.close()
        assert self._impairer.stdin is not None
        assert self._impairer.stdout is not None
        self._impairer.stdin.close()
        self._impairer.stdout.close()
        try:
            self._impairer.wait(5)
        except subprocess.TimeoutExpired:
            self._impairer.kill()
            self._impairer.wait()

    # ---- impaired links

    @property
    def impaired(self) -> Mapping[Link, Impairment]:
        return self._impaired

    def impair(self, links: Mapping[Link, Impairment]) -> None:
        """These links are impaired from now on, and no others."""
        self._ask({"impair": {str(link): asdict(how) for link, how in links.items()}})
        self._impaired = dict(links)

    def impair_more(self, links: Mapping[Link, Impairment]) -> None:
        self.impair({**self._impaired, **links})

    def heal(self) -> None:
        self.impair({})

    def counters(self) -> dict[Link, dict[str, int]]:
        """What happened to the packets of all links that were ever impaired, as running totals."""
        return {Link(*name.split(">")): values for name, values in self._ask({"counters": True}).items()}

    def _ask(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._impairer.stdin is not None
        assert self._impairer.stdout is not None
        self._impairer.stdin.write(json.dumps(order) + "\n")
        self._impairer.stdin.flush()
        line = self._impairer.stdout.readline()
        if not line:
            raise RuntimeError(f"the program that impairs links ended with {self._impairer.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    # ---- probes

    def probe(self, links: Iterable[Link], count: int = 20, patience_s: float = 0.3) -> dict[Link, int]:
        """Send datagrams along each link; how many of them arrive within `patience_s` after the last."""
        self._probed += 1
        wanted = list(links)
        arrived = dict.fromkeys(wanted, 0)
        marks = {f"{self._probed} {link}".encode(): link for link in wanted}
        for _ in range(count):
            for mark, link in marks.items():
                self._probes[link.source].sendto(mark, (ip_of(link.target), PROBE_PORT))
            self._receive(marks, arrived, 0)
        deadline_s = time.monotonic() + patience_s
        while (left_s := deadline_s - time.monotonic()) > 0 and any(got < count for got in arrived.values()):
            self._receive(marks, arrived, left_s)
        return arrived

    def _receive(self, marks: Mapping[bytes, Link], arrived: dict[Link, int], timeout_s: float) -> None:
        ready, _, _ = select.select(list({self._probes[link.target] for link in arrived}), [], [], timeout_s)
        for probe in ready:
            while True:
                try:
                    link = marks.get(os.read(probe.fileno(), 256))
                except BlockingIOError:
                    break
                if link is not None:
                    arrived[link] += 1
