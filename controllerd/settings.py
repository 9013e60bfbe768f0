"""The controller's command line: who it is, who the others are, and its settings groups."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from controllerd.nameserver.settings import NameServerSettings
from remoting import settings
from remoting.errors import InvalidParameter, SettingsError
from remoting.exporter import MetricsSettings
from remoting.guarding.guard import AccessSettings
from remoting.settings import group, setting
from remoting.transport.beats import CALM_MS
from remoting.transport.client import split_address
from remoting.transport.server import check_loopback, check_reach
from remoting.transport.tls import TlsSettings
from remoting.transport.watch import UnfinishedSettings

MAX_NODES: Final = 9
_CALM_AFTER_MS: Final = 10_000
NODE_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,32}")


@dataclass(frozen=True, slots=True)
class RaftSettings:
    group: str = setting("logboom", "name of the controller group; nodes of another group are refused")
    tick_ms: int = setting(50, "unit of time of the consensus", minimum=5, maximum=1000)
    heartbeat_ticks: int = setting(
        3, "ticks between a leader's heartbeats; while nothing is late, 250 ms if that is longer", minimum=1, maximum=20
    )
    election_ticks: int = setting(10, "ticks without a leader until an election, at least", minimum=3, maximum=200)
    compact_after_entries: int = setting(5000, "log entries until a snapshot replaces them", minimum=10)
    keep_entries: int = setting(500, "entries kept behind a snapshot for slow followers", minimum=0)
    decide_timeout_ms: int = setting(2500, "how long a request waits for a decision", minimum=100, maximum=60_000)

    @property
    def calm_heartbeat_ticks(self) -> int:
        """Ticks between a leader's heartbeats while nothing is late: as far apart as brokers' heartbeats, with two of them in the
        shortest election timeout."""
        return max(self.heartbeat_ticks, min(CALM_MS // self.tick_ms, self.election_ticks // 2))

    @property
    def calm_after_ticks(self) -> int:
        """For how long nothing must have been late."""
        return _CALM_AFTER_MS // self.tick_ms


@dataclass(frozen=True, slots=True)
class LivenessSettings:
    """When brokers count as dead. How often it speaks, and how long it may be silent at most, each broker says itself."""

    scan_ms: int = setting(50, "time between two looks at all brokers", minimum=10, maximum=5000)
    floor_intervals: int = setting(
        4, "a broker that was silent for fewer of its heartbeat intervals is never dead", minimum=2, maximum=100
    )
    grace_ms: int = setting(2000, "time for brokers to be heard by a leader that never heard them", minimum=100)
    pause_ms: int = setting(200, "delay of a look that means that this process stood still", minimum=50)


@dataclass(frozen=True, slots=True)
class ElectionSettings:
    unclean: bool = setting(
        False,
        "elect a replica that may lack acknowledged messages when nobody else lives",
        live=True,
        original="enableElectUncleanMaster",
    )
    notify: bool = setting(
        True,
        "tell brokers of a new master at once; otherwise they learn it when they ask",
        live=True,
        original="notifyBrokerRoleChanged",
    )


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """Everything that start-up needs.

    `peers` holds all nodes of the group, this one included, as id -> host:port; with `join` the others need not be named, as this
    node is brought into a group that is there already. It listens on `further_host` too, at the same port, unless that is empty.
    `given` names the settings (`part.key`) that the command line sets.
    """

    node_id: str
    peers: Mapping[str, str]
    data: Path
    raft: RaftSettings = group(RaftSettings)
    liveness: LivenessSettings = group(LivenessSettings)
    election: ElectionSettings = group(ElectionSettings)
    nameserver: NameServerSettings = group(NameServerSettings)
    metrics: MetricsSettings = group(MetricsSettings)
    access: AccessSettings = group(AccessSettings)
    tls: TlsSettings = group(TlsSettings)
    unfinished: UnfinishedSettings = group(UnfinishedSettings)
    cluster_secret: Path | None = None
    first_user: Path | None = None
    join: bool = False
    further_host: str = ""
    given: frozenset[str] = frozenset()

    @property
    def address(self) -> str:
        """Where this controller listens, for everything, and where the others dial it."""
        return self.peers[self.node_id]


def parse(arguments: Sequence[str]) -> ControllerSettings:
    """The settings of a command line. Raises SettingsError with the sentence that says what to change."""
    parts = settings.default_groups(ControllerSettings)
    parser = argparse.ArgumentParser(
        prog="python -m controllerd",
        description="One controller and name server of a group.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="settings for --set:\n" + settings.describe(parts),
    )
    parser.add_argument("--id", default="n0", help="which of the peers this is (%(default)s)")
    parser.add_argument(
        "--peers", default="n0=127.0.0.1:9876", help="id=host:port of every node, comma-separated (%(default)s)"
    )
    parser.add_argument(
        "--join",
        action="store_true",
        help="wait with an empty directory to be added to a group; --peers then needs this node only, under a new id",
    )
    parser.add_argument(
        "--also-on",
        default="",
        metavar="HOST",
        help="a further address of this machine to listen on, at the same port, such as one for clients beside loopback",
    )
    parser.add_argument("--data", required=True, type=Path, help="the directory that holds this controller's log")
    parser.add_argument(
        "--cluster-secret",
        type=Path,
        metavar="FILE",
        help="what the components of one cluster know one another by: the same file on all, mode 0600",
    )
    parser.add_argument(
        "--first-user",
        type=Path,
        metavar="FILE",
        help="NAME:PASSWORD of the super user that the first start with access.authentication makes, mode 0600, and not needed "
        "any more then; without the option a password is drawn and written to DATA/first-user",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="PART.KEY=VALUE", help="change a setting (see below)"
    )
    chosen = parser.parse_args(arguments)
    peers = parse_peers(chosen.peers)
    if chosen.id not in peers:
        raise SettingsError(f"--id {chosen.id} is not among --peers, which names {', '.join(peers)}")
    changed = settings.override(parts, chosen.set)
    host, _ = split_address(peers[chosen.id])
    what = f"the address of {chosen.id} in --peers"
    check_reach(host, what, authentication=changed["access"].authentication, tls=changed["tls"])
    if chosen.also_on:
        check_reach(chosen.also_on, "--also-on", authentication=changed["access"].authentication, tls=changed["tls"])
    check_loopback(changed["metrics"].host, "metrics.host")
    if changed["raft"].heartbeat_ticks >= changed["raft"].election_ticks:
        raise SettingsError("raft.heartbeat_ticks must be less than raft.election_ticks, or leaders never last")
    if changed["liveness"].pause_ms <= changed["liveness"].scan_ms:
        raise SettingsError("liveness.pause_ms must be more than liveness.scan_ms, or every look seems a pause")
    given = frozenset(assignment.partition("=")[0] for assignment in chosen.set)
    return ControllerSettings(
        chosen.id,
        peers,
        chosen.data,
        **changed,
        cluster_secret=chosen.cluster_secret,
        first_user=chosen.first_user,
        join=chosen.join,
        further_host=chosen.also_on,
        given=given,
    )


def parse_peers(text: str) -> dict[str, str]:
    """id=host:port,... as a table. Raises SettingsError."""
    peers: dict[str, str] = {}
    for part in text.split(","):
        node, separator, address = part.strip().partition("=")
        if not separator or not NODE_ID.fullmatch(node):
            raise SettingsError(f"--peers {part!r}: write id=host:port, for example n0=127.0.0.1:9876")
        if node in peers or address in peers.values():
            raise SettingsError(f"--peers names {part.strip()} twice; every node has its own id and address")
        try:
            split_address(address)
        except InvalidParameter as error:
            raise SettingsError(f"--peers: {error}") from error
        peers[node] = address
    if len(peers) > MAX_NODES:
        raise SettingsError(f"--peers names {len(peers)} nodes; more than {MAX_NODES} only make decisions slower")
    return peers
