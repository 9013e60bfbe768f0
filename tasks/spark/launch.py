"""The command line and environment of our Spark Connect server (pure)

Bound to loopback, with a token, without the web UI; every job in one fair pool, so that a small query gets its turn during a
large one; all scratch files in one directory of ours; time-outs that end what a killed client left running.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tasks.spark.settings import SparkSettings

SERVER_CLASS = "org.apache.spark.sql.connect.service.SparkConnectServer"

FAIR_POOLS = """<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
    <weight>1</weight>
    <minShare>0</minShare>
  </pool>
</allocations>
"""

# What of our environment Spark must not inherit: it would turn the server into a client of another one.
_UNWANTED = ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "SPARK_CONNECT_MODE", "SPARK_CONF_DIR")


def pools_file(settings: SparkSettings) -> Path:
    """Where the shell writes FAIR_POOLS."""
    return settings.scratch_dir / "fair.xml"


def command(settings: SparkSettings, spark_home: Path, port: int) -> list[str]:
    """The server's command line."""
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
        "spark.connect.session.manager.defaultSessionTimeout": "30m",
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
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = "127.0.0.1"
    argv = [str(spark_home / "bin" / "spark-submit"), "--class", SERVER_CLASS, "--master", settings.master]
    argv += ["--driver-memory", f"{settings.driver_memory_mb}m"]
    for name, value in conf.items():
        argv += ["--conf", f"{name}={value}"]
    return argv


def environment(
    settings: SparkSettings,
    inherited: Mapping[str, str],
    *,
    spark_home: Path,
    java_home: str,
    python: str,
    project_dir: Path,
    token: str,
) -> dict[str, str]:
    """The server's environment. The token travels here, since a command line is everybody's to read."""
    environ = {name: value for name, value in inherited.items() if name not in _UNWANTED}
    environ |= {
        "SPARK_HOME": str(spark_home),
        "JAVA_HOME": java_home,
        "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
        # Spark's Python workers import the source from here
        "PYTHONPATH": str(project_dir),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
    }
    if settings.is_local:
        environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return environ
