"""Apache RocketMQ 5.3.3 as child processes on loopback: name server, controllers, brokers, and its command-line tool.

The jars are resolved by their Maven coordinates into a cache outside the tree, once: `$XDG_CACHE_HOME/logboom/rocketmq-VERSION`
(by default under `~/.cache`). `ROCKETMQ_JARS` names a directory of jars to use instead; then Maven is not needed.

    apache = Apache.find()                         # raises Unavailable with the sentence to skip with
    with apache.session(tmp_path) as session:      # or the fixtures `apache` and `session`
        name_server = session.name_server(with_controller=True)
        broker = session.broker("broker-a", name_server.address, controllers=name_server.controller)
        print(session.mqadmin("clusterList", "-n", name_server.address))
"""

from __future__ import annotations

import functools
import os
import random
import re
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.cluster import Process, eventually, free_ports

VERSION: Final = "5.3.3"
COORDINATES: Final = (
    *(
        f"org.apache.rocketmq:rocketmq-{part}:{VERSION}"
        for part in ("namesrv", "broker", "controller", "tools", "client")
    ),
    "commons-cli:commons-cli:1.5.0",
)
WITH_PROXY: Final = (*COORDINATES, f"org.apache.rocketmq:rocketmq-proxy:{VERSION}")
JARS_VARIABLE: Final = "ROCKETMQ_JARS"

_RESOLVE_TIMEOUT_S: Final = 900
_START_TIMEOUT_S: Final = 60
_LOWEST_PORT: Final = 12_000
_PACKAGE: Final = "org.apache.rocketmq"
# What the original reaches into of the JDK to unmap files; its own start scripts use options that Java 17 refuses.
_JVM_OPTIONS: Final = (
    *("--add-exports", "java.base/jdk.internal.ref=ALL-UNNAMED"),
    *("--add-exports", "java.base/sun.nio.ch=ALL-UNNAMED"),
    *("--add-opens", "java.base/java.nio=ALL-UNNAMED"),
    *("--add-opens", "java.base/sun.nio.ch=ALL-UNNAMED"),
)
# Starts fast and stays small; for measuring speed, leave the JVM its full compiler and the collector it was tuned with.
_SMALL_JVM: Final = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
FAST_JVM: Final = ("-XX:+UseG1GC",)
# How the original logs; LEVEL stands for the least level.
LOGGING: Final = """<configuration>
  <statusListener class="org.apache.rocketmq.logging.ch.qos.logback.core.status.NopStatusListener"/>
  <appender name="out" class="org.apache.rocketmq.logging.ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d{HH:mm:ss.SSS} %level %logger - %msg%n</pattern></encoder>
  </appender>
  <logger name="RocketmqPop" level="OFF"/>
  <logger name="RocketmqWaterMark" level="OFF"/>
  <root level="LEVEL"><appender-ref ref="out"/></root>
</configuration>
"""
_THROWN = re.compile(r"^(?:Exception in thread .*|(?:[a-z]\w*\.)+[A-Z]\w*(?:Exception|Error)\b.*)$", re.MULTILINE)


class Unavailable(Exception):
    """Apache RocketMQ cannot be run here; the text says why in one sentence."""


class CommandFailed(AssertionError):
    """mqadmin threw; its exit code is 0 nevertheless. The text is what it printed."""


@dataclass(frozen=True, slots=True)
class Apache:
    """Where Java is, and the jars."""

    java: str
    jars: Path

    @classmethod
    def find(cls) -> Apache:
        """Resolve the jars if that was not done before. Raises Unavailable."""
        return cls(_find_java(), _find_jars(f"rocketmq-{VERSION}", COORDINATES))

    @classmethod
    def find_with_proxy(cls) -> Apache:
        """The same with the original's gRPC proxy beside the rest."""
        return cls(_find_java(), _find_jars(f"rocketmq-proxy-{VERSION}", WITH_PROXY))

    def session(self, directory: Path, jvm: Sequence[str] = _SMALL_JVM) -> Session:
        """A working directory for processes and their logs; use it as a context manager."""
        return Session(self, directory, jvm)


@functools.cache
def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(f"{home}/bin/java") if home else shutil.which("java")
    if java is None:
        raise Unavailable("Apache RocketMQ needs Java: install a JDK (default-jdk-headless) or set JAVA_HOME")
    return java


@functools.cache
def _find_jars(name: str, coordinates: Sequence[str]) -> Path:
    given = os.environ.get(JARS_VARIABLE)
    if given:
        for jar in ("{1}-{2}.jar".format(*coordinate.split(":")) for coordinate in coordinates):
            if not Path(given, jar).exists():
                raise Unavailable(f"{JARS_VARIABLE} is {given}, where there is no {jar}")
        return Path(given)
    return cached_jars(name, tuple(coordinates))


def cache_directory() -> Path:
    """Where what these tests need from elsewhere is kept, outside the tree."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "logboom"


@functools.cache
def cached_jars(name: str, coordinates: Sequence[str]) -> Path:
    """The directory of that name in the cache, with these jars and what they need; resolved once. Raises Unavailable."""
    cache = cache_directory() / name
    if not cache.exists():
        _resolve(cache, coordinates)
    return cache


def _resolve(target: Path, coordinates: Sequence[str]) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(
            f"Apache RocketMQ needs Maven: install maven, or set {JARS_VARIABLE} to a directory of its jars"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="resolving-", dir=target.parent) as work:
        Path(work, "pom.xml").write_text(_pom(coordinates))
        command = [maven, "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={work}/jars"]
        done = subprocess.run(
            command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_RESOLVE_TIMEOUT_S
        )
        if done.returncode:
            error = next((line for line in done.stdout.splitlines() if "ERROR" in line), "it says nothing more")
            raise Unavailable(f"Maven could not resolve {target.name}: {error}")
        try:
            os.rename(f"{work}/jars", target)
        except OSError:
            if not target.exists():  # otherwise somebody else resolved them in the meantime
                raise


def _pom(coordinates: Sequence[str]) -> str:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        for group, artifact, version in (coordinate.split(":") for coordinate in coordinates)
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>logboom</groupId><artifactId>interop</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )


@dataclass(slots=True)
class NameServer:
    """A running name server of the original; `controller` is the address of the one inside it, if it has one."""

    process: Process
    address: str
    controller: str = ""


@dataclass(slots=True)
class Broker:
    """A running broker of the original. `store` is its store root."""

    process: Process
    name: str
    address: str
    ha_address: str
    store: Path


@dataclass(slots=True)
class Session:
    """Processes of one test; everything started is killed at `close`."""

    apache: Apache
    directory: Path
    jvm: Sequence[str] = _SMALL_JVM
    processes: list[Process] = field(default_factory=list)

    def __post_init__(self) -> None:
        for kind, level in (("daemon", "INFO"), ("tool", "OFF")):
            (self.directory / "logging" / kind).mkdir(parents=True, exist_ok=True)
            (self.directory / "logging" / kind / "rmq.logback.xml").write_text(LOGGING.replace("LEVEL", level))

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for process in reversed(self.processes):
            process.close()

    def name_server(
        self, *, with_controller: bool = False, properties: Mapping[str, object] | None = None
    ) -> NameServer:
        """A name server; `with_controller` runs the only controller of a group inside it."""
        listen, raft = free_ports(2)
        name = f"namesrv-{listen}"
        settings: dict[str, object] = {
            "listenPort": listen,
            "bindAddress": "127.0.0.1",
            "kvConfigPath": self.directory / name / "kvConfig.json",
            "configStorePath": self.directory / name / "namesrv.properties",
        }
        if with_controller:
            settings |= {"enableControllerInNamesrv": "true", **self._controller_settings(0, [raft])}
        process = self._start(name, f"{_PACKAGE}.namesrv.NamesrvStartup", settings | dict(properties or {}))
        wait_listening(process, listen)
        if not with_controller:
            return NameServer(process, f"127.0.0.1:{listen}")
        wait_listening(process, raft)
        return NameServer(process, f"127.0.0.1:{listen}", f"127.0.0.1:{raft}")

    def controllers(self, count: int, *, properties: Mapping[str, object] | None = None) -> list[tuple[Process, str]]:
        """A group of controllers without a name server: each process with its address."""
        ports = free_ports(count)
        started = []
        for number, port in enumerate(ports):
            settings = self._controller_settings(number, ports) | {"bindAddress": "127.0.0.1"}
            name = f"controller-{port}"
            process = self._start(name, f"{_PACKAGE}.controller.ControllerStartup", settings | dict(properties or {}))
            started.append((process, f"127.0.0.1:{port}"))
        for (process, _), port in zip(started, ports, strict=True):
            wait_listening(process, port)
        return started

    def broker(
        self,
        name: str,
        name_servers: str,
        *,
        controllers: str = "",
        cluster: str = "DefaultCluster",
        broker_id: int = 0,
        properties: Mapping[str, object] | None = None,
        heap: Sequence[str] = ("-Xms256m", "-Xmx512m"),
        wait: bool = True,
        proxy: Path | None = None,
    ) -> Broker:
        """A broker; in controller mode when `controllers` (host:port;host:port) are given; with `proxy`, a configuration file,
        inside a proxy in local mode.

        Returns when it accepts connections, which is before it has a role.
        """
        listen, ha_port = broker_ports()
        store = self.directory / f"broker-{listen}" / "store"
        settings: dict[str, object] = {
            "brokerClusterName": cluster,
            "brokerName": name,
            "brokerId": broker_id,
            "brokerIP1": "127.0.0.1",
            "brokerIP2": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": listen,
            "haListenPort": ha_port,
            "namesrvAddr": name_servers,
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "autoCreateTopicEnable": "true",
            "transientStorePoolEnable": "false",
            "warmMapedFileEnable": "false",
            "mappedFileSizeConsumeQueue": 20 * 3000,
            "maxHashSlotNum": 10_000,
            "maxIndexNum": 40_000,
            "timerWheelEnable": "false",
        }
        if controllers:
            settings |= {"enableControllerMode": "true", "controllerAddr": controllers}
        settings |= dict(properties or {})
        if proxy is None:
            process = self._start(f"broker-{listen}", f"{_PACKAGE}.broker.BrokerStartup", settings, heap)
        else:
            more = ("-pc", str(proxy), "-bc", str(self._write(f"broker-{listen}", settings)))
            words = ("-pm", "local", "-n", name_servers, *more)
            process = self.start_java(f"broker-{listen}", f"{_PACKAGE}.proxy.ProxyStartup", words, heap)
        if wait:
            wait_listening(process, listen)
        return Broker(process, name, f"127.0.0.1:{listen}", f"127.0.0.1:{ha_port}", store)

    def mqadmin(self, *arguments: str, timeout_s: float = 60) -> str:
        """Run one command of the original's tool; what it printed. Raises CommandFailed when it threw."""
        done = subprocess.run(
            self.command(f"{_PACKAGE}.tools.command.MQAdminStartup", arguments, ("-Xms64m", "-Xmx256m"), "tool"),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment,
            timeout=timeout_s,
        )
        if done.returncode or _THROWN.search(done.stdout):
            raise CommandFailed(f"mqadmin {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}")
        return done.stdout

    def command(
        self,
        main: str,
        arguments: Sequence[str],
        heap: Sequence[str],
        logging: str = "daemon",
        classes: Path | None = None,
    ) -> list[str]:
        """The command line of a program of the original, or of one in the directory `classes`."""
        home = f"-Duser.home={self.directory}"  # whatever it keeps under a home directory
        classpath = f"{self.directory}/logging/{logging}:{self.apache.jars}/*" + (f":{classes}" if classes else "")
        return [self.apache.java, *heap, *self.jvm, *_JVM_OPTIONS, home, "-cp", classpath, main, *arguments]

    @property
    def environment(self) -> dict[str, str]:
        """Of every program."""
        return {**os.environ, "ROCKETMQ_HOME": str(self.directory)}

    # Inside

    def _controller_settings(self, number: int, ports: Sequence[int]) -> dict[str, object]:
        return {
            "controllerDLegerGroup": "group1",
            "controllerDLegerPeers": ";".join(f"n{each}-127.0.0.1:{port}" for each, port in enumerate(ports)),
            "controllerDLegerSelfId": f"n{number}",
            "controllerStorePath": self.directory / f"controller-{ports[number]}",
            "mappedFileSize": 16 << 20,
        }

    def _start(
        self, name: str, main: str, settings: Mapping[str, object], heap: Sequence[str] = ("-Xms128m", "-Xmx256m")
    ) -> Process:
        return self.start_java(name, main, ("-c", str(self._write(name, settings))), heap)

    def _write(self, name: str, settings: Mapping[str, object]) -> Path:
        (self.directory / name).mkdir(parents=True, exist_ok=True)
        file = self.directory / name / "properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        return file

    def start_java(self, name: str, main: str, arguments: Sequence[str], heap: Sequence[str]) -> Process:
        """Run one of the original's programs until the session ends."""
        java, *arguments = self.command(main, arguments, heap)
        process = Process(name, arguments, self.directory / f"{name}.log", program=java, environment=self.environment)
        self.processes.append(process)
        process.start()
        return process


def broker_ports() -> tuple[int, int]:
    """A listen port and, as is custom, the next one for HA; the original's broker also opens the second lower neighbour.

    They lie below those that the system gives to outgoing connections: a broker that is killed and started again finds them free.
    """
    lowest_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])

    def found() -> tuple[int, int] | None:
        listen = random.randrange(_LOWEST_PORT, lowest_outgoing - 1)
        for port in (listen - 2, listen, listen + 1):
            with socket.socket() as probe:
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:
                    return None
        return listen, listen + 1

    return eventually("free ports for a broker", found)


def wait_listening(process: Process, port: int, timeout_s: float = _START_TIMEOUT_S) -> None:
    """Wait until somebody accepts connections on the port; fails with the process's output when it ends instead."""

    def listening() -> bool:
        if not process.is_running:
            raise AssertionError(
                f"{process.name} ended with exit code {process.exit_code}:\n{process.log_text()[-4000:]}"
            )
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", port)) == 0

    eventually(f"{process.name} listens on port {port}", listening, timeout_s)
