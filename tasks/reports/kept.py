"""What Spark keeps for a report while it runs: slices of messages, each read from the brokers once."""

from __future__ import annotations

import logging
from functools import reduce
from typing import Any

from tasks.reports.context import Context
from tasks.spark.retrying import again_if_worker_lost

log = logging.getLogger(__name__)


class Kept:
    """The slices that Spark keeps, by the name of a temporary view: a view is analysed once, however often it is used."""

    def __init__(self, context: Context, name: str = "") -> None:
        """A report that keeps several kinds gives each a name."""
        self._spark = context.spark
        self._prefix = f"logboom_{context.run_id.replace('-', '_')}{name}"
        self._names: list[str] = []

    def keep(self, frame: Any) -> Any:
        """Keep a slice from its first use on."""
        name = f"{self._prefix}_{len(self._names)}"
        again_if_worker_lost(lambda: frame.createOrReplaceTempView(name))
        self._names.append(name)
        again_if_worker_lost(lambda: self._spark.catalog.cacheTable(name))
        return self._spark.table(name)

    def all(self, empty: Any = None) -> Any:
        """All slices as one; `empty` without any."""
        if not self._names:
            return empty
        return reduce(lambda one, other: one.unionByName(other), (self._spark.table(name) for name in self._names))

    def forget(self) -> None:
        """Free what was kept. If Spark is gone, so is what it kept."""
        from pyspark.errors import PySparkException

        names, self._names = self._names, []
        try:
            for name in names:
                self._spark.catalog.uncacheTable(name)
                self._spark.catalog.dropTempView(name)
        except (PySparkException, OSError) as error:
            log.warning("Spark did not forget the report's slices: %s", str(error)[:200])
