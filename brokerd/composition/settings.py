"""The broker's command line: where it lives, whom it asks, and its settings groups, of which one more is one more line."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokerd.composition.flow_settings import FlowSettings
from brokerd.consuming.read_place import PullSettings
from brokerd.delay.deliverer import DelaySettings
from brokerd.delay.levels import DEFAULT_LEVELS, Delays, parse_levels
from brokerd.journal.journal import JournalSettings
from brokerd.native.settings import KernelSettings
from brokerd.pop.settings import PopSettings
from brokerd.proxy.endpoint import EndpointSettings
from brokerd.proxy.forward import ForwardSettings
from brokerd.repair.settings import ScrubSettings
from brokerd.replication.settings import ReplicationSettings
from brokerd.sending.settings import SendSettings
from brokerd.store.settings import RetentionSettings, StoreSettings
from brokerd.tiers.settings import TierSettings
from brokerd.timers.settings import TimerSettings
from brokerd.transactions.settings import TransactionSettings
from remoting import settings
from remoting.errors import SettingsError
from remoting.exporter import MetricsSettings
from remoting.guarding.guard import AccessSettings
from remoting.names import MAX_BROKER_NAME_LENGTH
from remoting.settings import group, setting
from remoting.transport.client import split_address
from remoting.transport.server import check_loopback, check_reach
from remoting.transport.tls import TlsSettings
from remoting.transport.watch import UnfinishedSettings

_BELOW: Final = 2  # what clients subtract from a broker's port


@dataclass(frozen=True, slots=True)
class StoreSection(StoreSettings):
    """The store's settings, and the delay levels, which count among them for people; the store itself knows no levels."""

    delay_levels: str = setting(
        DEFAULT_LEVELS,
        "delays of level 1, 2, ... (units s m h d); the same on every replica of a group",
        original="messageDelayLevel",
    )

    def __post_init__(self) -> None:
        StoreSettings.__post_init__(self)
        parse_levels(self.delay_levels)

    @property
    def delays(self) -> Delays:
        """Milliseconds of delay level 1, 2, ..."""
        return parse_levels(self.delay_levels)


@dataclass(frozen=True, slots=True)
class RemotingSettings:
    """The listener for remoting clients."""

    vip_channel: bool = setting(
        True, "serve the port two below as well, if it is free: clients with vipChannelEnabled send there"
    )

    def vip_port(self, port: int) -> int | None:
        """The second port of a listener, None when there is none."""
        return port - _BELOW if self.vip_channel and port > _BELOW else None


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """Everything that start-up needs. Addresses are host:port; `controllers` are name servers too."""

    cluster: str
    name: str
    listen: str
    ha_listen: str
    grpc_listen: str
    controllers: tuple[str, ...]
    data: Path
    cluster_secret: Path | None
    mount: bool = False
    release_mount: bool = False
    store: StoreSection = group(StoreSection)
    retention: RetentionSettings = group(RetentionSettings)
    scrub: ScrubSettings = group(ScrubSettings)
    replication: ReplicationSettings = group(ReplicationSettings)
    pop: PopSettings = group(PopSettings)
    delay: DelaySettings = group(DelaySettings)
    timers: TimerSettings = group(TimerSettings)
    tiers: TierSettings = group(TierSettings)
    journal: JournalSettings = group(JournalSettings)
    grpc: EndpointSettings = group(EndpointSettings)
    forward: ForwardSettings = group(ForwardSettings)
    metrics: MetricsSettings = group(MetricsSettings)
    pull: PullSettings = group(PullSettings)
    send: SendSettings = group(SendSettings)
    kernel: KernelSettings = group(KernelSettings)
    transactions: TransactionSettings = group(TransactionSettings)
    remoting: RemotingSettings = group(RemotingSettings)
    flow: FlowSettings = group(FlowSettings)
    unfinished: UnfinishedSettings = group(UnfinishedSettings)
    access: AccessSettings = group(AccessSettings)
    tls: TlsSettings = group(TlsSettings)
    given: frozenset[str] = frozenset()  # the settings that the command line names


def parse(arguments: Sequence[str]) -> BrokerSettings:
    """The settings of a command line. Raises SettingsError with the sentence that says what to change."""
    parts = settings.default_groups(BrokerSettings)
    parser = argparse.ArgumentParser(
        prog="python -m brokerd",
        description="One replica of one broker group.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="settings for --set:\n" + settings.describe(parts),
    )
    parser.add_argument("--cluster", default="DefaultCluster", help="the cluster's name (%(default)s)")
    parser.add_argument("--name", default="broker-a", help="the broker group's name (%(default)s)")
    parser.add_argument("--listen", default="127.0.0.1:10911", help="host:port for remoting clients (%(default)s)")
    parser.add_argument(
        "--ha-listen", default="127.0.0.1:10912", help="host:port for the group's replicas (%(default)s)"
    )
    parser.add_argument("--grpc-listen", default="127.0.0.1:8081", help="host:port for gRPC clients (%(default)s)")
    parser.add_argument(
        "--controllers", default="127.0.0.1:9876", help="host:port of every controller, comma-separated"
    )
    parser.add_argument(
        "--data", type=Path, help="the directory that holds this replica's log; needed by all but --release-mount"
    )
    parser.add_argument(
        "--cluster-secret",
        "--replication-secret",
        dest="cluster_secret",
        type=Path,
        metavar="FILE",
        help="what the components of one cluster know one another by: the same file on all, mode 0600",
    )
    parser.add_argument(
        "--mount",
        action="store_true",
        help="serve the broker group of that name, which is gone, read-only from its tier (tiers.url)",
    )
    parser.add_argument(
        "--release-mount",
        action="store_true",
        help="let the brokers of that name lead again, which were kept from it by a mount; then end",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="PART.KEY=VALUE", help="change a setting (see below)"
    )
    chosen = parser.parse_args(arguments)
    if chosen.data is None and not chosen.release_mount:
        parser.error("--data is required: the directory that holds this replica's log")
    for option in ("cluster", "name"):
        name = getattr(chosen, option)
        if not name.isascii() or not name.replace("-", "").replace("_", "").isalnum():
            raise SettingsError(f"--{option} {name[:MAX_BROKER_NAME_LENGTH]!r}: use letters, digits, - and _ only")
        if len(name) > MAX_BROKER_NAME_LENGTH:
            raise SettingsError(f"--{option} has {len(name)} characters, and may have {MAX_BROKER_NAME_LENGTH}")
    controllers = tuple(filter(None, chosen.controllers.split(",")))
    if not controllers:
        raise SettingsError("--controllers names no address; write host:port of each controller, separated by commas")
    for address in controllers:
        split_address(address)
    groups = settings.override(parts, chosen.set)
    access, tls = groups["access"], groups["tls"]
    for option in ("listen", "ha_listen", "grpc_listen"):
        host, _ = split_address(getattr(chosen, option))
        check_reach(host, "--" + option.replace("_", "-"), authentication=access.authentication, tls=tls)
    check_loopback(groups["metrics"].host, "metrics.host")
    return BrokerSettings(
        cluster=chosen.cluster,
        name=chosen.name,
        listen=chosen.listen,
        ha_listen=chosen.ha_listen,
        grpc_listen=chosen.grpc_listen,
        controllers=controllers,
        data=chosen.data or Path(),
        mount=chosen.mount,
        release_mount=chosen.release_mount,
        cluster_secret=chosen.cluster_secret,
        given=frozenset(each.partition("=")[0] for each in chosen.set),
        **groups,
    )
