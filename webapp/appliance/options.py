"""The options of the command `up`, each with its bounds.

Called once by `up`. A bad value ends in one sentence that names the option and the rule, never in a traceback. What is left
out comes from the shape that the data directory was made with, and from the defaults on the first start.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from remoting.errors import SettingsError
from webapp.appliance.bounds import bounded
from webapp.appliance.environment import DEFAULT_REPORTS_AT_ONCE, MOST_REPORTS_AT_ONCE
from webapp.appliance.place import COMMAND, DEFAULT_DATA_DIR
from webapp.appliance.reach import LOOPBACK, SECURED, Secure, add_console_options, host, secure_of

MAX_GROUPS = 26
MAX_REPLICAS = 9
CONTROLLER_COUNTS = (1, 3, 5)


@dataclass(frozen=True, slots=True)
class Shape:
    """How large the cluster is; remembered in the data directory."""

    controllers: int = 3
    groups: int = 1
    replicas: int = 3


@dataclass(frozen=True, slots=True)
class Tier:
    """Where messages are kept after their files went; remembered in the data directory. `options_path` may be empty."""

    url: str
    options_path: str = ""

    @property
    def broker_settings(self) -> tuple[str, ...]:
        """What brokers are told of it."""
        options = (f"tiers.options_path={self.options_path}",) if self.options_path else ()
        return (f"tiers.url={self.url}", *options)


@dataclass(frozen=True, slots=True)
class Options:
    """Everything that a person can choose; None in a count means: as the data directory has it."""

    data_dir: Path = DEFAULT_DATA_DIR
    controllers: int | None = None
    groups: int | None = None
    replicas: int | None = None
    http_host: str = "127.0.0.1"
    http_port: int = 8000
    controller_port: int = 9876
    broker_port: int = 10911
    grpc_port: int = 8081
    redis_server: Path | None = None
    controller_settings: tuple[str, ...] = ()
    broker_settings: tuple[str, ...] = ()
    tier: Tier | None = None
    no_tier: bool = False
    secure: Secure | None = None
    reports_at_once: int = DEFAULT_REPORTS_AT_ONCE
    timeout_s: int = 60

    @property
    def has_authentication(self) -> bool:
        """Whether the controllers take signed requests only."""
        return self.secure is not None or "access.authentication=true" in self.controller_settings

    @property
    def host(self) -> str:
        """Where clients find brokers."""
        return LOOPBACK if self.secure is None else self.secure.host

    @property
    def secured(self) -> tuple[str, ...]:
        """What every daemon is told of it; what a person sets wins."""
        return () if self.secure is None else SECURED


_DEVELOPMENT = ("send.auto_create_topics=true",)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> None:  # type: ignore[override]
        raise SettingsError(f"{message}; `{self.prog} --help` explains every option")


def parse_options(arguments: Sequence[str]) -> Options:
    """Turn command-line arguments into options; raises SettingsError with the sentence to show."""
    given = vars(_parser().parse_args(arguments))
    if "http" in given:
        given["http_host"], given["http_port"] = given.pop("http")
    development = _DEVELOPMENT if given.pop("development", False) else ()
    given["tier"] = _tier(given.pop("tier", None), given.pop("tier_options", None), given.get("no_tier", False))
    given["secure"] = secure_of(given.pop("secure", None), given)
    given["broker_settings"] = (*development, *given.get("broker_settings", ()))
    given["controller_settings"] = tuple(given.get("controller_settings", ()))
    return Options(**given)


def _tier(url: str | None, options: Path | None, is_refused: bool) -> Tier | None:
    """The one that was asked for. Raises SettingsError."""
    if url is None:
        if options is not None:
            raise SettingsError(
                "--tier-options has what the object store of --tier needs; say which one: --tier s3://bucket/prefix"
            )
        return None
    if is_refused:
        raise SettingsError("--tier and --no-tier say the opposite of each other; give one of them")
    return Tier(url, str(options) if options is not None else "")


def settle_tier(options: Options, remembered: Tier | None) -> Options:
    """The options with the tier that counts: what was asked for, else what an earlier start had. Brokers are told of it before
    all other settings, so that a person's own come later."""
    tier = options.tier or (None if options.no_tier else remembered)
    told = tier.broker_settings if tier is not None else ()
    return replace(options, tier=tier, broker_settings=(*told, *options.broker_settings))


def tier_of(broker_settings: Sequence[str]) -> Tier | None:
    """The tier that brokers with these settings have: the last word counts."""
    told = dict(each.partition("=")[::2] for each in broker_settings)
    url = told.get("tiers.url", "")
    return Tier(url, told.get("tiers.options_path", "")) if url else None


def settle_shape(options: Options, remembered: Shape | None) -> Shape:
    """Decide the cluster's size from the options and from what the data directory was made with."""
    if remembered is not None and options.controllers not in (None, remembered.controllers):
        raise SettingsError(
            f"{options.data_dir} was made with {remembered.controllers} controller(s), and `up` starts those and no others; "
            f"leave --controllers out, or choose another directory with --data (`{COMMAND} controller add` brings in one "
            f"that you start yourself)"
        )
    base = remembered or Shape()
    return Shape(
        controllers=base.controllers if options.controllers is None else options.controllers,
        groups=base.groups if options.groups is None else options.groups,
        replicas=base.replicas if options.replicas is None else options.replicas,
    )


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog=f"{COMMAND} up",
        description="Start the whole appliance on this machine and keep it running until Ctrl-C.",
        epilog="Environment: LOGBOOM_ADMIN_PASSWORD (password of the first admin), REDIS_URL (use this Redis), DATABASE_URL (use "
        "this database), JAVA_HOME (Java 17+ for Spark), LOGBOOM_SPARK_MASTER (a Spark cluster instead of this machine).",
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    shape = parser.add_argument_group("size (kept in the data directory; later starts may leave it out)")
    shape.add_argument(
        "--controllers",
        type=_controllers,
        metavar="N",
        help="controllers that elect masters: 1, 3 or 5 (first start: 3); those that join later with "
        f"`{COMMAND} controller add` are started by whoever adds them, not by this command",
    )
    shape.add_argument(
        "--groups", type=bounded(1, MAX_GROUPS), metavar="N", help=f"broker groups, 1 to {MAX_GROUPS} (first start: 1)"
    )
    shape.add_argument(
        "--replicas",
        type=bounded(1, MAX_REPLICAS),
        metavar="N",
        help=f"brokers per group, each with all of its messages, 1 to {MAX_REPLICAS} (first start: 3)",
    )
    places = parser.add_argument_group("places")
    places.add_argument(
        "--data",
        dest="data_dir",
        type=lambda text: Path(text).expanduser().absolute(),
        metavar="DIR",
        help=f"directory of all data, made if missing (default: {DEFAULT_DATA_DIR})".replace("%", "%%"),
    )
    places.add_argument(
        "--http",
        type=_http,
        metavar="HOST:PORT",
        help="address of console and REST, a loopback address (default: 127.0.0.1:8000)",
    )
    for name, what in (
        ("controller_port", "port of the first controller and name server; the others follow at +1"),
        ("broker_port", "port of the first broker; the others follow at +10, replication is at +1 of each"),
        ("grpc_port", "port of the first broker's gRPC endpoint; the others follow at +1"),
    ):
        option, default = f"--{name.replace('_', '-')}", getattr(Options(), name)
        places.add_argument(option, type=bounded(1, 65535), metavar="PORT", help=f"{what} (default: {default})")
    places.add_argument(
        "--redis-server",
        type=lambda text: Path(text).expanduser().absolute(),
        metavar="FILE",
        help="a redis-server or valkey-server to run instead of the bundled one (not used when REDIS_URL is set)",
    )
    tier = parser.add_argument_group("tier (kept in the data directory; later starts may leave it out)")
    tier.add_argument(
        "--tier",
        type=_url,
        metavar="URL",
        help="the object store that keeps messages after their files went, and from which they are read on as before: "
        "file:///directory, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix",
    )
    tier.add_argument(
        "--tier-options",
        type=lambda text: Path(text).expanduser().absolute(),
        metavar="FILE",
        help="its credentials and other options as a JSON object, such as endpoint, region, access_key_id and "
        "secret_access_key; mode 0600",
    )
    tier.add_argument(
        "--no-tier",
        action="store_true",
        help="forget the tier of earlier starts: what is there alone cannot be read then",
    )
    secure = parser.add_argument_group(
        f"for other machines (kept in the data directory; `{COMMAND} secure` does it while the appliance runs, and undoes it)"
    )
    secure.add_argument(
        "--secure",
        type=host,
        metavar="HOST",
        help="listen at this address or name of this machine, with users, permissions and TLS on all ports; the console by HTTPS",
    )
    add_console_options(secure)
    tuning = parser.add_argument_group("tuning")
    tuning.add_argument(
        "--development",
        action="store_true",
        help="for trying things out: a topic is made when somebody sends to it, whatever its name",
    )
    for component in ("controller", "broker"):
        tuning.add_argument(
            f"--{component}-set",
            dest=f"{component}_settings",
            action="append",
            type=_setting,
            metavar="KEY=VALUE",
            help=f"a setting for every {component}; may be repeated (`python -m {component}d --help` lists them)",
        )
    tuning.add_argument(
        "--reports-at-once",
        type=bounded(1, MOST_REPORTS_AT_ONCE),
        metavar="N",
        help="how many reports run side by side in one Spark, each with a worker process that may hold 400 MiB; the others wait "
        f"in line (default: {DEFAULT_REPORTS_AT_ONCE})",
    )
    tuning.add_argument(
        "--timeout",
        dest="timeout_s",
        type=bounded(1, 3600),
        metavar="SECONDS",
        help="after this long without being healthy, say what is missing (default: 60)",
    )
    return parser


def _controllers(text: str) -> int:
    if text not in map(str, CONTROLLER_COUNTS):
        raise argparse.ArgumentTypeError(f"{text!r} is not 1, 3 or 5 (an even number survives no more failures)")
    return int(text)


def _http(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:8000")
    host = host.strip("[]")
    if not _is_loopback(host):
        raise argparse.ArgumentTypeError(
            f"{host!r} is not a loopback address; there the console takes plain HTTP: say --secure HOST for HTTPS beside "
            f"it, or put a proxy with TLS in front (LOGBOOM_ALLOWED_HOSTS names the proxy's host)"
        )
    return host, bounded(1, 65535)(port)


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _url(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator or not scheme or not rest:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL, such as file:///srv/tier or s3://bucket/prefix")
    return text


def _setting(text: str) -> str:
    key, equals, _ = text.partition("=")
    if not equals or not key:
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return text
