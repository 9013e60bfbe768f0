"""A program that stands in the way of chosen links: it loses, delays or swallows their packets, and counts them.

    python -m tests.chaos.impair PREFIX SEED

Every node's namespace gets a TUN device. While a link is impaired, its source routes packets for its target into that device;
they arrive here, and those that survive are handed to the target's device. Links that are not impaired never come here. The
kernel's own netem would do the same where it is built in; this needs TUN devices only, has a seed, and knows what it did to which
link.

It is told what to do by lines of JSON, and answers each with one line:

    {"impair": {"b0>b1": {"loss": 0.8, "delay_ms": 0}}}   these links and no others, from now on
    {"counters": true}                                    per link: packets seen, passed, dropped, TCP packets dropped or delayed
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import json
import os
import random
import select
import socket
import struct
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.chaos.addresses import Link, ip_of, node_at
from tests.chaos.namespaces import existing_nodes, inside, ip_batch, namespace_of

DEVICE: Final = "impair0"
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x0001 | 0x1000
_TCP: Final = 6
_READS_PER_TURN: Final = 64
_MOST_DELAYED: Final = 20_000


@dataclass
class Counters:
    """What happened to one link's packets while it was impaired."""

    seen: int = 0
    passed: int = 0
    dropped: int = 0
    tcp_dropped: int = 0
    tcp_delayed: int = 0


@dataclass(frozen=True)
class Impairment:
    """Each packet is lost with probability `loss`, otherwise it arrives `delay_ms` late."""

    loss: float = 0.0
    delay_ms: int = 0


class Impairer:
    """Owns the devices. One thread, no locks."""

    def __init__(self, prefix: str, seed: int) -> None:
        self._prefix = prefix
        self._seed = seed
        self._devices = {node: open_device(prefix, node) for node in existing_nodes(prefix)}
        self._table: dict[Link, Impairment] = {}
        self._chance: dict[Link, random.Random] = {}
        self._counters: dict[Link, Counters] = {}
        self._delayed: list[tuple[float, int, Link, bytes]] = []
        self._numbered = 0

    def run(self) -> None:
        """Until standard input ends."""
        poll = select.epoll()
        nodes = {fd: node for node, fd in self._devices.items()}
        for fd in nodes:
            poll.register(fd, select.EPOLLIN)
        poll.register(0, select.EPOLLIN | select.EPOLLHUP)
        while True:
            timeout_s = max(0.0, self._delayed[0][0] - time.monotonic()) if self._delayed else -1
            for fd, _ in poll.poll(timeout_s):
                if fd == 0:
                    line = sys.stdin.readline()
                    if not line:
                        return
                    sys.stdout.write(json.dumps(self._answer(json.loads(line))) + "\n")
                    sys.stdout.flush()
                else:
                    self._forward_from(nodes[fd], fd)
            self._deliver_due()

    def _answer(self, order: dict[str, Any]) -> dict[str, Any]:
        if "impair" in order:
            wanted = {Link(*name.split(">")): Impairment(**how) for name, how in order["impair"].items()}
            self._reroute(wanted)
            self._table = wanted
            return {"impaired": len(wanted)}
        return {str(link): asdict(counters) for link, counters in self._counters.items()}

    def _reroute(self, wanted: dict[Link, Impairment]) -> None:
        """Send the packets of the wanted links here, those of the others the direct way."""
        for link in wanted:
            self._counters.setdefault(link, Counters())
            self._chance.setdefault(link, random.Random(f"{self._seed} {link}"))
        for node in self._devices:
            here = {link for link in wanted if link.source == node}
            before = {link for link in self._table if link.source == node}
            lines = [f"route replace {ip_of(link.target)}/32 dev {DEVICE} src {ip_of(node)}" for link in here - before]
            lines += [f"route del {ip_of(link.target)}/32 dev {DEVICE}" for link in before - here]
            if lines:
                ip_batch(namespace_of(self._prefix, node), lines)

    def _forward_from(self, source: str, fd: int) -> None:
        for _ in range(_READS_PER_TURN):
            try:
                packet = os.read(fd, 65535)
            except BlockingIOError:
                return
            if packet[0] >> 4 != 4:  # a device also says hello in IPv6
                continue
            with contextlib.suppress(KeyError):
                self._forward(Link(source, node_at(socket.inet_ntoa(packet[16:20]))), packet)

    def _forward(self, link: Link, packet: bytes) -> None:
        impairment = self._table.get(link, Impairment())  # a packet on its way when the link was healed passes
        counters = self._counters[link]
        counters.seen += 1
        is_tcp = packet[9] == _TCP
        if self._chance[link].random() < impairment.loss or len(self._delayed) >= _MOST_DELAYED:
            counters.dropped += 1
            counters.tcp_dropped += is_tcp
        elif impairment.delay_ms:
            counters.tcp_delayed += is_tcp
            self._numbered += 1
            due_s = time.monotonic() + impairment.delay_ms / 1000
            heapq.heappush(self._delayed, (due_s, self._numbered, link, packet))
        else:
            self._deliver(link, packet)

    def _deliver_due(self) -> None:
        now_s = time.monotonic()
        while self._delayed and self._delayed[0][0] <= now_s:
            _, _, link, packet = heapq.heappop(self._delayed)
            self._deliver(link, packet)

    def _deliver(self, link: Link, packet: bytes) -> None:
        try:
            os.write(self._devices[link.target], packet)
        except BlockingIOError:
            self._counters[link].dropped += 1
        else:
            self._counters[link].passed += 1


def open_device(prefix: str, node: str) -> int:
    """A TUN device in the node's namespace, up and ready; the descriptor that reads and writes its packets."""
    namespace = namespace_of(prefix, node)
    with inside(namespace):
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH", DEVICE.encode(), _IFF_TUN_NO_PI))
        for name, value in (("route_localnet", "1"), ("rp_filter", "0")):
            with open(f"/proc/sys/net/ipv4/conf/{DEVICE}/{name}", "w") as sysctl:
                sysctl.write(value)
    ip_batch(namespace, [f"link set {DEVICE} txqueuelen 5000 up"])
    return fd


if __name__ == "__main__":
    Impairer(sys.argv[1], int(sys.argv[2])).run()
