"""The `logboom` data source: topics as a DataFrame.

    spark.dataSource.register(LogboomSource)
    spark.read.format("logboom").option("controllers", "127.0.0.1:9876").option("subscribe", "orders").load()

Options are in `tasks.spark.options`, columns in `COLUMNS` below. A schema given by the user is the projection: only its columns
are decoded, which makes a metadata query several times cheaper; without one all are there but those of timers. `body_size` is the
size as stored; `body` is unpacked.
Offsets are those of the masters; the messages come from replicas in sync where there are any, so these must be reachable, too.

Spark pickles these classes: one Python worker plans, others read. So nothing here holds a socket; each task opens its own and
closes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType, StructField, StructType

from remoting.errors import InvalidParameter
from tasks.spark.attempts import patience_ms
from tasks.spark.cluster import Cluster, find_ranges
from tasks.spark.cold import ColdRanges
from tasks.spark.meter import Meter
from tasks.spark.options import Options
from tasks.spark.planning import QueueRange, plan
from tasks.spark.reader import read_ranges
from tasks.spark.records import COLUMN_TYPES, USUAL_COLUMNS
from tasks.tier.objects import place_of

NAME: Final = "logboom"

COLUMNS: Final[dict[str, DataType]] = {name: from_arrow_type(kind) for name, kind in COLUMN_TYPES.items()}


def schema_of(columns: Sequence[str]) -> StructType:
    """The Spark schema of a projection."""
    return StructType([StructField(name, COLUMNS[name]) for name in columns])


class LogboomSource(DataSource):  # type: ignore[misc]
    """Registered under the name `logboom`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return schema_of(USUAL_COLUMNS)

    def reader(self, schema: StructType) -> LogboomReader:
        """Spark asks for a reader of its own schema, or of the one that the user gave."""
        return LogboomReader(Options.parse(self.options), _projection(schema))


def _projection(schema: StructType) -> tuple[str, ...]:
    for each in schema.fields:
        if each.name not in COLUMNS:
            raise InvalidParameter(f"the source logboom has no column {each.name}; it has {', '.join(COLUMNS)}")
        wanted = COLUMNS[each.name]
        if type(each.dataType) is not type(wanted):
            is_, should = each.dataType.simpleString(), wanted.simpleString()
            raise InvalidParameter(f"the column {each.name} has the type {should}, not {is_}")
    return tuple(schema.fieldNames())


class RangesPartition(InputPartition):  # type: ignore[misc]
    """What one task reads."""

    def __init__(self, index: int, ranges: Sequence[QueueRange]) -> None:
        super().__init__(index)
        self.ranges = list(ranges)


class LogboomReader(DataSourceReader):  # type: ignore[misc]
    """Plans and reads one batch query."""

    def __init__(self, options: Options, columns: tuple[str, ...]) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[RangesPartition]:
        """Fix the offsets to read, once per query."""
        options = self._options
        with _connect(options) as cluster:
            ranges = find_ranges(cluster, options)
        parts = plan(ranges, options.min_partitions, options.max_records_per_partition)
        # Spark makes a partition of its own when there is none, and hands `None` to read: an empty one is clearer
        return [RangesPartition(index, part) for index, part in enumerate(parts)] or [RangesPartition(0, [])]

    def read(self, partition: RangesPartition) -> Iterator[pa.RecordBatch]:
        """In a task: the partition's messages as Arrow batches."""
        options = self._options
        meter = Meter(options.meter_address, options.meter_token, _attempt(partition))
        try:
            with _connect(options) as cluster:
                yield from read_ranges(
                    cluster,
                    partition.ranges,
                    self._columns,
                    fail_on_data_loss=options.fail_on_data_loss,
                    timeout_ms=options.timeout_ms,
                    meter=meter,
                    turn=partition.value,
                    cold=_cold(options, cluster),
                )
        finally:
            meter.finish()


def _connect(options: Options) -> Cluster:
    return Cluster(options.controllers, timeout_ms=options.timeout_ms, retry_for_ms=patience_ms(options.retry_for_ms))


def _cold(options: Options, cluster: Cluster) -> ColdRanges | None:
    place = place_of(options.tier_url, options.tier_options, ("tierUrl", "tierOptions"))
    return None if place is None else ColdRanges(place, cluster.cluster_of, options.tier_after_ms)


def _attempt(partition: RangesPartition) -> str:
    """A name for what is read, the same for every attempt: attempts read the same messages and must not count twice."""
    first: tuple[object, ...] = partition.ranges[0] if partition.ranges else ()
    return ":".join(map(str, (partition.value, *first)))
