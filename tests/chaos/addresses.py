"""Who is where: the nodes of a chaos run, and the link between any two (pure).

Every address is in 127.66.0.0/24. Daemons bind to loopback addresses only, as long as their listeners have no authentication, and
by number these are such addresses; inside the run's network namespaces they are routed over a bridge like any other network.
"""

from __future__ import annotations

from typing import Final, NamedTuple

CONTROLLER_PORT: Final = 9876
BROKER_PORT: Final = 10911
HA_PORT: Final = 10912
GRPC_PORT: Final = 8081

CLIENTS: Final = "cl"
CONTROLLERS: Final = tuple(f"c{n}" for n in range(5))
BROKERS: Final = tuple(f"b{n}" for n in range(4))
NODES: Final = (*CONTROLLERS, *BROKERS, CLIENTS)

_FIRST: Final = {"c": 11, "b": 21}


class Link(NamedTuple):
    """One direction between two nodes."""

    source: str
    target: str

    def __str__(self) -> str:
        return f"{self.source}>{self.target}"


def ip_of(node: str) -> str:
    """The node's address on the run's network."""
    return "127.66.0.31" if node == CLIENTS else f"127.66.0.{_FIRST[node[0]] + int(node[1:])}"


def node_at(address: str) -> str:
    """The node of a host:port or an address; raises KeyError for another network's."""
    return _NODE_OF[address.partition(":")[0]]


def controller_address(node: str) -> str:
    return f"{ip_of(node)}:{CONTROLLER_PORT}"


def broker_address(node: str) -> str:
    return f"{ip_of(node)}:{BROKER_PORT}"


def both_ways(one_side: tuple[str, ...] | frozenset[str], other_side: tuple[str, ...] | frozenset[str]) -> list[Link]:
    """All links between two groups of nodes, in both directions."""
    ways = [(a, b) for a in sorted(one_side) for b in sorted(other_side) if a != b]
    return sorted({Link(a, b) for a, b in ways} | {Link(b, a) for a, b in ways})


def among(nodes: tuple[str, ...]) -> list[Link]:
    """All links between any two of the nodes, in both directions."""
    return [Link(a, b) for a in nodes for b in nodes if a != b]


_NODE_OF: Final = {ip_of(node): node for node in NODES}
