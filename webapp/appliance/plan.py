"""Options -> the processes of the appliance, in order (pure)

The plan is the whole knowledge of what runs: command lines, what each waits for, how one tells that it is ready, in which
order they stop. The supervisor carries a plan out and knows nothing about brokers; tests hand it plans of tiny processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from pathlib import Path

from remoting.errors import SettingsError
from webapp import wishes
from webapp.appliance import environment
from webapp.appliance.layout import DataLayout
from webapp.appliance.options import Options, Shape, tier_of
from webapp.appliance.place import PROJECT_DIR
from webapp.appliance.reach import LOOPBACK, Secure, join_address

CLUSTER = "DefaultCluster"
HOST = LOOPBACK

# A child of the reports worker that holds more than this is replaced after its report: its rows and Arrow's buffers stay its own.
REPORT_MEMORY_KIB = 400 * 1024

# A child of it that has had no report for so long ends; with the next report there is another one in a moment.
REPORT_CHILD_S = 600

WEB = "web"
"""The console's server."""

# A gate that opens when the database is migrated and the first admin exists
PREPARED = "prepared"


class Kind(StrEnum):
    """What a process is, for the console and for messages."""

    REDIS = "redis"
    CONTROLLER = "controller"
    BROKER = "broker"
    WEB = "web"
    WORKER = "worker"
    BEAT = "beat"
    COLLECTOR = "collector"
    SPARK = "spark"


class StopStage(IntEnum):
    """The order of stopping: first what uses the cluster, then the cluster, then what everything uses."""

    FRONT = 0
    BROKERS = 1
    CONTROLLERS = 2
    REDIS = 3


@dataclass(frozen=True, slots=True)
class RedisProbe:
    """Ready when PING is answered, on its socket, to its user."""

    socket: Path
    user: str
    password_file: Path


@dataclass(frozen=True, slots=True)
class ControllerProbe:
    """Ready when the controller knows who leads."""

    address: str


@dataclass(frozen=True, slots=True)
class BrokerProbe:
    """Ready when a controller confirmed the broker's role."""

    address: str


@dataclass(frozen=True, slots=True)
class HttpProbe:
    """Ready when the console answers."""

    address: str
    path: str = "/api/v1/health"


@dataclass(frozen=True, slots=True)
class HeartbeatProbe:
    """Ready when the process touched its file after it was started."""

    file: Path


Probe = RedisProbe | ControllerProbe | BrokerProbe | HttpProbe | HeartbeatProbe


@dataclass(frozen=True, slots=True)
class PortUse:
    """A port that a process will listen on, and the option that moves it."""

    host: str
    port: int
    option: str


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process: how to start it, how to know that it is ready, when to stop it."""

    name: str
    kind: Kind
    argv: tuple[str, ...]
    probe: Probe
    stop_stage: StopStage
    after: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    ports: tuple[PortUse, ...] = ()
    group: str | None = None  # of a broker

    @property
    def address(self) -> str | None:
        """The main address for people, if it listens at all."""
        return f"{self.ports[0].host}:{self.ports[0].port}" if self.ports else None


@dataclass(frozen=True, slots=True)
class RedisPart:
    """The Redis of the appliance: its name for people and, of an embedded one, how it is run and asked."""

    what: str
    argv: tuple[str, ...] = ()
    probe: RedisProbe | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """All processes of one appliance and what they share."""

    processes: tuple[ProcessSpec, ...]
    env: dict[str, str]
    http: str
    controllers: tuple[str, ...]
    grpc_endpoints: tuple[str, ...]
    name_servers: tuple[str, ...] = ()  # the controllers, as clients know them
    redis: str = ""  # which one it is, for people
    https: str | None = None  # the console for other machines
    working_dir: Path = PROJECT_DIR

    @property
    def broker_groups(self) -> dict[str, list[ProcessSpec]]:
        """The brokers of each group."""
        groups: dict[str, list[ProcessSpec]] = {}
        for process in self.processes:
            if process.group is not None:
                groups.setdefault(process.group, []).append(process)
        return groups

    @property
    def ports(self) -> list[tuple[ProcessSpec, PortUse]]:
        """Every port with its owner, in the order of starting."""
        return [(process, use) for process in self.processes for use in process.ports]


def make_plan(
    options: Options,
    shape: Shape,
    layout: DataLayout,
    python: str,
    redis: RedisPart,
    handed_down: dict[str, str],
) -> Plan:
    """Lay out the appliance.

    `handed_down` holds the variables that do not follow from the options (Redis, Java).
    """
    controllers = tuple(f"{HOST}:{options.controller_port + index}" for index in range(shape.controllers))
    http = join_address(options.http_host, options.http_port)
    brokers = _brokers(options, shape, layout, python, controllers)
    embedded = _redis(redis)
    processes = [
        *embedded,
        *_controllers(options, shape, layout, python, controllers),
        *brokers,
        *_front(options, layout, python, http, embedded_redis=bool(embedded)),
    ]
    plan = Plan(
        processes=tuple(processes),
        env={
            environment.DATA_DIR: str(layout.root),
            environment.CONTROLLERS: ",".join(controllers),
            environment.HTTP: http,
            environment.REPORTS_AT_ONCE: str(options.reports_at_once),
            environment.CLUSTER_SECRET: str(layout.replication_secret_file),
            "PYTHONUNBUFFERED": "1",
            **_tier(options),
            **_secure(options, layout),
            **handed_down,
        },
        http=http,
        redis=redis.what,
        controllers=controllers,
        grpc_endpoints=tuple(join_address(options.host, options.grpc_port + index) for index in range(len(brokers))),
        name_servers=tuple(
            join_address(options.host, options.controller_port + index) for index in range(shape.controllers)
        ),
        https=options.secure.https if options.secure is not None else None,
    )
    _check_ports(plan)
    return plan


def _tier(options: Options) -> dict[str, str]:
    """What reads the tier without a broker is told of it."""
    tier = tier_of(options.broker_settings)
    return {environment.TIER_URL: tier.url, environment.TIER_OPTIONS: tier.options_path} if tier is not None else {}


def _secure(options: Options, layout: DataLayout) -> dict[str, str]:
    """The console and its tasks dial with TLS then, and browsers reach it by another name."""
    if options.secure is None:
        return {}
    return {
        environment.TLS_CA: str(layout.tls_authority_file),
        environment.SECURE_HOST: options.secure.host,
    }


def _redis(redis: RedisPart) -> list[ProcessSpec]:
    """None when REDIS_URL names another one."""
    if redis.probe is None:
        return []
    return [ProcessSpec(name="redis", kind=Kind.REDIS, argv=redis.argv, probe=redis.probe, stop_stage=StopStage.REDIS)]


def _controllers(
    options: Options, shape: Shape, layout: DataLayout, python: str, addresses: Sequence[str]
) -> list[ProcessSpec]:
    peers = ",".join(f"n{index}={address}" for index, address in enumerate(addresses))
    specs = []
    for index in range(shape.controllers):
        argv = [python, "-m", "controllerd", "--id", f"n{index}", "--peers", peers]
        argv += ["--data", str(layout.controller(f"n{index}"))]
        argv += ["--cluster-secret", str(layout.replication_secret_file)]
        if options.has_authentication:
            argv += ["--first-user", str(layout.first_user_file)]
        if options.secure is not None:
            argv += ["--also-on", options.secure.host]
        argv += _settings((*tls_settings(layout), *options.secured, *options.controller_settings))
        specs.append(
            ProcessSpec(
                name=f"controller-n{index}",
                kind=Kind.CONTROLLER,
                argv=tuple(argv),
                probe=ControllerProbe(addresses[index]),
                stop_stage=StopStage.CONTROLLERS,
                ports=tuple(
                    PortUse(host, options.controller_port + index, "--controller-port")
                    for host in dict.fromkeys((HOST, options.host))
                ),
            )
        )
    return specs


def _brokers(
    options: Options, shape: Shape, layout: DataLayout, python: str, controllers: Sequence[str]
) -> list[ProcessSpec]:
    specs = []
    for index in range(shape.groups * shape.replicas):
        group, replica = divmod(index, shape.replicas)
        group_name = f"broker-{chr(ord('a') + group)}"
        name = f"{group_name}-{replica + 1}"
        port = options.broker_port + 10 * index
        grpc_port = options.grpc_port + index
        argv = [python, "-m", "brokerd", "--cluster", CLUSTER, "--name", group_name]
        argv += [
            "--listen",
            join_address(options.host, port),
            "--ha-listen",
            f"{HOST}:{port + 1}",
            "--grpc-listen",
            join_address(options.host, grpc_port),
        ]
        argv += ["--controllers", ",".join(controllers), "--data", str(layout.broker(name))]
        argv += ["--cluster-secret", str(layout.replication_secret_file)]
        argv += _settings((*tls_settings(layout), *options.secured, *options.broker_settings))
        specs.append(
            ProcessSpec(
                name=name,
                kind=Kind.BROKER,
                argv=tuple(argv),
                probe=BrokerProbe(join_address(options.host, port)),
                stop_stage=StopStage.BROKERS,
                group=group_name,
                ports=(
                    PortUse(options.host, port, "--broker-port"),
                    PortUse(HOST, port + 1, "--broker-port"),
                    PortUse(options.host, grpc_port, "--grpc-port"),
                ),
            )
        )
    return specs


def mount_of(broker: ProcessSpec, data: Path) -> ProcessSpec:
    """The process that serves this broker's group from its tier, at this broker's addresses: none of the group's own runs."""
    argv = list(broker.argv)
    argv[argv.index("--data") + 1] = str(data)
    return replace(broker, name=wishes.mount_process(str(broker.group)), argv=(*argv, "--mount"))


def _front(options: Options, layout: DataLayout, python: str, http: str, embedded_redis: bool) -> list[ProcessSpec]:
    after = (PREPARED, "redis") if embedded_redis else (PREPARED,)
    lean = (python, "-m", "webapp.lean")

    def background(name: str, kind: Kind, argv: tuple[str, ...], env: Mapping[str, str] | None = None) -> ProcessSpec:
        heartbeat = layout.heartbeat_file(name)
        return ProcessSpec(
            name=name,
            kind=kind,
            argv=argv,
            probe=HeartbeatProbe(heartbeat),
            stop_stage=StopStage.FRONT,
            after=after,
            env={environment.HEARTBEAT_FILE: str(heartbeat), **(env or {})},
        )

    web = ProcessSpec(
        name=WEB,
        kind=Kind.WEB,
        argv=(
            *(*lean, "webapp.serving", "--bind", options.http_host, "--port", str(options.http_port)),
            *("--certificate", str(layout.tls_certificate_file), "--key", str(layout.tls_key_file)),
            *(_https(options.secure) if options.secure is not None else ()),
            *("--no-server-name", "webapp.asgi:application"),
        ),
        probe=HttpProbe(http),
        stop_stage=StopStage.FRONT,
        after=after,
        ports=(
            PortUse(options.http_host, options.http_port, "--http"),
            *((PortUse(options.secure.host, options.secure.https_port, "--https-port"),) if options.secure else ()),
        ),
    )
    return [
        web,
        background("collector", Kind.COLLECTOR, (*lean, "tasks.collector")),
        # An election must not wait behind a report, so each queue has a worker of its own.
        background("worker-default", Kind.WORKER, (*lean, "tasks.worker", "--queue", "default", "--processes", "2")),
        background(
            "worker-reports",
            Kind.WORKER,
            (
                *(*lean, "tasks.worker", "--queue", "reports", "--at-most", f"{options.reports_at_once}"),
                *("--most-memory-kib", str(REPORT_MEMORY_KIB)),
            ),
            {"AUTOSCALE_KEEPALIVE": str(REPORT_CHILD_S)},
        ),
        background("beat", Kind.BEAT, (*lean, "tasks.beat")),
        background("spark", Kind.SPARK, (python, "-m", "tasks.spark.server")),
    ]


def _https(secure: Secure) -> tuple[str, ...]:
    """The console's second port, with the appliance's certificate or a person's own."""
    port = ("--https", join_address(secure.host, secure.https_port))
    if not secure.certificate_path:
        return port
    return (*port, "--https-certificate", secure.certificate_path, "--https-key", secure.key_path)


def tls_settings(layout: DataLayout) -> tuple[str, ...]:
    """Every port of a daemon answers TLS and plaintext, so that clients get in with their defaults; what a person sets wins."""
    return (
        "tls.mode=permissive",
        f"tls.certificate_path={layout.tls_certificate_file}",
        f"tls.key_path={layout.tls_key_file}",
        f"tls.ca_path={layout.tls_authority_file}",
    )


def _settings(settings: Sequence[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


def _check_ports(plan: Plan) -> None:
    taken: dict[tuple[str, int], tuple[ProcessSpec, PortUse]] = {}
    for process, use in plan.ports:
        if use.port > 65535:
            raise SettingsError(
                f"{process.name} would listen on port {use.port}, above 65535; choose a lower {use.option}"
            )
        place = (use.host, use.port)
        if place in taken:
            other, other_use = taken[place]
            raise SettingsError(
                f"{process.name} and {other.name} would both listen on port {use.port}; "
                f"move one with {use.option} or {other_use.option}"
            )
        taken[place] = (process, use)
