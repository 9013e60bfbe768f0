"""The job of the report: read the deliveries slice by slice and show what is known, then the timers, then what needs all of both.

Counts of deliveries add up from slices. Percentiles, repeats, and what was not delivered are found in the end, in what Spark
kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from tasks.reports.context import Context, ReportFailed, Result
from tasks.reports.kept import Kept
from tasks.reports.slices import read_in_slices
from tasks.reports.sources import sources
from tasks.reports.timers import read, transforms, write
from tasks.reports.timers.hours import ADDED, COUNTS, PERCENTILES, Hours, TooMany, moment
from tasks.reports.timers.summary import Counted, summary
from tasks.spark.meter import MeterReceiver
from tasks.spark.source import schema_of
from webapp.reports.catalogue import Row

_LATENESS = (*ADDED, *PERCENTILES, "max_ms")


def run(context: Context) -> Result:
    """Make the report; raises RunCancelled, ReportFailed, or what Spark and the cluster raise."""
    context.progress.say("asking the brokers how much there is to read")
    found = read.find(context.controllers, context.parameters, context.as_of_ms)
    messages, timers = (sum(each.size for each in ranges) for ranges in (found.messages, found.timers))
    groups = write.group_rows(found.states)
    context.publish(groups)
    if not messages + timers:
        write.write_parquet(context.result_path, Hours())
        return Result(groups, summary(found.coverage, Counted()))
    hours = Hours()
    kept, waiting = Kept(context), Kept(context, "_timers")
    try:
        with MeterReceiver() as meter:
            context.progress.expect_rows(messages + timers, lambda: meter.totals()[0])
            take = partial(_take_deliveries, context, kept, hours)
            read_in_slices(context, found.messages, transforms.MESSAGE_COLUMNS, meter, take)
            records: list[int] = []
            keep = partial(_take_timers, context, waiting, records)
            read_in_slices(context, found.timers, transforms.TIMER_COLUMNS, meter, keep, "records of timers")
            told = sources(hours.messages + sum(records), meter.rows_from)
        counted = Counted(expected=messages + timers, read=hours.messages + sum(records), timer_records=sum(records))
        no_messages, no_records = (
            context.spark.createDataFrame([], schema_of(columns))
            for columns in (transforms.MESSAGE_COLUMNS, transforms.TIMER_COLUMNS)
        )
        measured = kept.all(transforms.measured(no_messages))
        result = _Finish(context, found, hours, measured, waiting.all(no_records)).run(groups, counted)
        return Result(result.rows, [*result.summary, *told])
    except TooMany as error:
        raise ReportFailed(f"The report would have {error}.") from error
    finally:
        kept.forget()
        waiting.forget()


def _take_deliveries(context: Context, kept: Kept, hours: Hours, frame: Any) -> None:
    messages = kept.keep(transforms.measured(frame))
    changed = hours.add(context.collect(transforms.per_hour(messages)))
    # beyond the cap the newest are shown in the end; until then the first ones are
    shown = changed if len(hours.found) <= write.MOST_ROWS else []
    context.publish(write.hour_rows(hours, shown))


def _take_timers(context: Context, kept: Kept, counts: list[int], frame: Any) -> None:
    [row] = context.collect(transforms.counted(kept.keep(frame)))
    counts.append(row["records"])


class _Finish:
    """What needs all slices: `messages` as measured, and `records` of the timer topic."""

    def __init__(self, context: Context, found: read.Found, hours: Hours, messages: Any, records: Any) -> None:
        self._context = context
        self._coverage = found.coverage
        self._hours = hours
        self._delivered = transforms.deliveries(messages)
        self._records = records
        self._wanted = frozenset(found.coverage.topics)
        self._topics: dict[str | None, dict[str, Any]] = {None: {}}
        self._gone = 0

    def run(self, groups: Sequence[Row], counted: Counted) -> Result:
        """The rows and the summary."""
        late = self._measure()
        self._look_for_open()
        topics = self._topic_rows()
        self._context.publish(topics)
        self._context.progress.say("writing the result")
        write.write_parquet(self._context.result_path, self._hours)
        shown = self._hours.newest(write.MOST_ROWS)
        rows = [*write.hour_rows(self._hours, shown), *topics, *late, *groups]
        return Result(rows, summary(self._coverage, self._told(counted, len(shown))))

    def _measure(self) -> list[Row]:
        """How late, by hour and topic, and how many how late; and what came twice."""
        self._step("lateness", "sorting by lateness")
        for row in self._context.collect(transforms.lateness(self._delivered)):
            if row["hour_ms"] is not None:
                self._hours.put([row], *_LATENESS)
            else:
                self._topics.setdefault(row["topic"], {}).update({name: row[name] for name in (*PERCENTILES, "max_ms")})
        late = write.lateness_rows(self._context.collect(transforms.buckets(self._delivered)))
        self._context.publish(late)
        self._step("repeats", "looking for repeats")
        self._hours.put(self._context.collect(transforms.duplicates(self._delivered)), "duplicates")
        return late

    def _look_for_open(self) -> None:
        """What was taken back, and what did not come."""
        coverage = self._coverage
        self._step("timers", "looking for timers that were not delivered")
        timers = transforms.waiting(self._records)
        recalled = transforms.recalls(self._records, timers)
        found = self._context.collect(transforms.recalled_per_hour(recalled, coverage.start_ms))
        self._hours.put(filter(self._is_wanted, found), "recalled")
        still_open = transforms.open_timers(timers, self._delivered, recalled)
        overdue = transforms.overdue_per_hour(still_open, coverage.whole_from_ms, coverage.end_ms)
        for row in self._context.collect(overdue):
            if self._is_wanted(row):
                self._hours.put([row], "overdue")
                values = self._topics.setdefault(row["topic"], {})
                values["first_ms"] = min(row["first_ms"], values.get("first_ms", row["first_ms"]))
            elif self._is_gone(row["topic"] or ""):
                self._gone += row["overdue"]
        for row in filter(self._is_wanted, self._context.collect(transforms.pending(still_open, coverage.end_ms))):
            self._topics.setdefault(row["topic"], {}).update(row)

    def _topic_rows(self) -> list[Row]:
        """One for each topic, and before them one for all."""
        self._topics |= {each.topic: {} for each in self._hours.found if each.topic not in self._topics}
        whole = self._topics[None]
        for name in ("first_ms", "next_ms"):
            whole[name] = min((each[name] for each in self._topics.values() if name in each), default=None)
        whole["pending"] = sum(each.get("pending", 0) for each in self._topics.values())
        if len(self._topics) == 1:
            return []
        return [self._topic_row(topic, values) for topic, values in self._topics.items()]

    def _topic_row(self, topic: str | None, values: Mapping[str, Any]) -> Row:
        known = {
            **{name: self._hours.total(name, topic) for name in COUNTS},
            **{name: values.get(name) for name in (*PERCENTILES, "max_ms")},
            "pending": values.get("pending", 0),
            "overdue_since": moment(values.get("first_ms")),
            "next_due": moment(values.get("next_ms")),
        }
        return write.topic_row(topic, known)

    def _told(self, counted: Counted, rows_kept: int) -> Counted:
        whole, total = self._topics[None], self._hours.total
        return replace(
            counted,
            delivered=total("delivered"),
            early=total("early"),
            duplicates=total("duplicates"),
            overdue=total("overdue"),
            gone=self._gone,
            pending=whole["pending"],
            p99_ms=whole.get("p99_ms"),
            max_ms=whole.get("max_ms"),
            rows=len(self._hours.found),
            rows_kept=rows_kept,
        )

    def _is_wanted(self, row: Mapping[str, Any]) -> bool:
        return row["topic"] in self._wanted

    def _is_gone(self, topic: str) -> bool:
        """Of all topics that were looked at, if no choice was made."""
        chosen = self._context.parameters.get("topics")
        return topic not in self._coverage.known_topics and (not chosen or topic in chosen)

    def _step(self, name: str, words: str) -> None:
        self._context.progress.enter(name)
        self._context.progress.say(words)
