"""The command line and environment of our Spark Connect server (pure)

Bound to loopback, with a token, without the web UI; every job in one fair pool, so that a small query gets its turn during a
large one; all scratch files in one directory of ours; time-outs that end what a killed client left running.

On this machine the server is started as the Java program that it is: Spark's own scripts start a JVM first that does nothing but
write the command line. A cluster's settings (`spark-env.sh`, Hadoop's directories) are those scripts' business, so there they
start it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tasks.spark.settings import SparkSettings

SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"
DAEMONS = "tasks.spark.daemons"

FAIR_POOLS = """<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
    <weight>1</weight>
    <minShare>0</minShare>
  </pool>
</allocations>
"""

# A small heap for a small machine: one thread collects it, and what is free is given back while nobody needs it. Java refuses
# two collectors, and the environment (JAVA_TOOL_OPTIONS) may ask for another.
JVM_OPTIONS = (
    "-XX:-UseG1GC",
    "-XX:-UseParallelGC",
    "-XX:-UseShenandoahGC",
    "-XX:-UseZGC",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:MinHeapFreeRatio=10",
    "-XX:MaxHeapFreeRatio=30",
)

# What Spark needs opened of Java's modules: its own list (JavaModuleOptions) without what only its machine learning uses.
_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)
_MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens={name}=ALL-UNNAMED" for name in _OPENED),
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--enable-native-access=ALL-UNNAMED",
)

# What of our environment Spark must not inherit: it would turn the server into a client of another one.
_UNWANTED = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_CONNECT_MODE", "SPARK_CONF_DIR")


@dataclass(frozen=True, slots=True)
class Programs:
    """What is started, and with what; `jars` are Spark's, in an order that does not change."""

    spark_home: Path
    jars: tuple[Path, ...]
    java_home: str
    python: str


def pools_file(settings: SparkSettings) -> Path:
    """Where the shell writes FAIR_POOLS."""
    return settings.scratch_dir / "fair.xml"


def worker_python(programs: Programs) -> str:
    """The program that Spark on this machine starts as Python."""
    return f'#!/bin/sh\nexec {shlex.quote(programs.python)} -m {DAEMONS} "$@"\n'


def command(settings: SparkSettings, programs: Programs, port: int, jvm_options: Sequence[str] = ()) -> list[str]:
    """The server's command line; `jvm_options` are further ones for a server on this machine."""
    conf = _conf(settings, port)
    memory = f"{settings.driver_memory_mb}m"
    if not settings.is_local:
        argv = [str(programs.spark_home / "bin" / "spark-submit"), "--class", SERVER_CLASS]
        argv += ["--master", settings.master, "--driver-memory", memory]
        return argv + [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    java = str(Path(programs.java_home) / "bin" / "java")
    options = [*_MODULE_OPTIONS, *JVM_OPTIONS, *jvm_options, f"-Xmx{memory}"]
    return [
        java,
        *options,
        *(f"-D{name}={value}" for name, value in conf.items()),
        "-cp",
        ":".join(map(str, programs.jars)),
        SERVER_CLASS,
    ]


def _conf(settings: SparkSettings, port: int) -> dict[str, str]:
    scratch = settings.scratch_dir
    conf = {
        "spark.app.name": "logboom",
        "spark.ui.enabled": "false",
        "spark.log.level": "WARN",
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.connect.progress.reportInterval": "500ms",
        # a client that was killed must not leave its job running
        "spark.connect.execute.manager.detachedTimeout": "10s",
        "spark.connect.execute.manager.maintenanceInterval": "5s",
        "spark.connect.execute.reattachable.senderMaxStreamDuration": "10s",
        # the session lives as long as the server: its clients come and go
        "spark.connect.session.manager.defaultSessionTimeout": f"{settings.idle_stop_ms // 60_000 + 30}m",
        # collecting garbage gives memory back to the machine; by itself a heap without work never does
        "spark.cleaner.periodicGC.interval": "2min",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": str(pools_file(settings)),
        "spark.local.dir": str(scratch / "local"),
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.session.timeZone": "UTC",
        # reports group a few thousand rows per slice; the default of 200 would be 200 tasks of nothing
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.execution.pyspark.udf.faulthandler.enabled": "true",
    }
    if settings.is_local:
        conf["spark.master"] = settings.task_master
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = "127.0.0.1"
        # The driver and its block manager listen as well, and would speak to anybody on the machine; a secret is drawn at start
        conf["spark.authenticate"] = "true"
        conf["spark.network.crypto.enabled"] = "true"
    return conf


def environment(
    settings: SparkSettings, inherited: Mapping[str, str], programs: Programs, *, project_dir: Path, token: str
) -> dict[str, str]:
    """The server's environment. The token travels here, since a command line is everybody's to read."""
    environ = {name: value for name, value in inherited.items() if name not in _UNWANTED}
    environ |= {
        "SPARK_HOME": str(programs.spark_home),
        "JAVA_HOME": programs.java_home,
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "PYSPARK_PYTHON": programs.python,
        # Spark would start this one to look for others' Python sources among the installed packages; ours is registered
        "PYSPARK_DRIVER_PYTHON": "/nonexistent/python",
        # Spark's Python workers import the source from here
        "PYTHONPATH": str(project_dir),
        "PYTHONDONTWRITEBYTECODE": "1",
        # no library starts a thread where workers are forked (`tasks.spark.daemons`)
        "OMP_NUM_THREADS": "1",
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        "MALLOC_ARENA_MAX": "2",
    }
    if settings.is_local:
        environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return environ
