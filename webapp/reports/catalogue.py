"""The reports there are: their parameters with rules, and the sections of their result with columns and chart (pure).

The worker has one job per name here (`tasks/reports/<name>/`) and writes rows whose `data` has these columns; the console builds
forms, tables, charts and downloads from this table alone. A value that is not known is null.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Literal

from remoting.names import LEGAL_NAME, MAX_TOPIC_LENGTH
from webapp.errors import NotFound
from webapp.rules import Rules

# In any time zone these are still times.
EARLIEST: Final = datetime(1970, 1, 1, tzinfo=UTC)
LATEST: Final = datetime(9998, 12, 31, tzinfo=UTC)

ColumnType = Literal["text", "integer", "bytes", "time", "number", "share"]


@dataclass(frozen=True, slots=True)
class Column:
    """One column. `time` is RFC 3339 UTC text, `bytes` and `integer` are whole numbers, a `share` is from 0 to 1."""

    name: str
    title: str
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Chart:
    """Lines over a time column: one line per distinct `series`, summing `value`, or with `largest` its largest.

    With `step_s` the absence of a row means that nothing happened in that step, so the line is at 0 there; with `largest` it has
    a gap there, as it has where a row's value is not known.
    """

    x: str
    series: str
    value: str
    step_s: int = 0
    largest: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """One table of the result; `sort` is how its rows are ordered when shown (`-` in front: falling). `note` says what a reader
    of its numbers has to know.
    """

    name: str
    title: str
    columns: tuple[Column, ...]
    sort: tuple[str, ...]
    chart: Chart | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter, as a form field and in REST."""

    name: str
    title: str
    type: Literal["topics", "integer", "time"]
    help: str
    default: Any = None
    least: int = 0
    most: int = 0


@dataclass(frozen=True, slots=True)
class Report:
    """One kind of report."""

    name: str
    title: str
    description: str
    parameters: tuple[Parameter, ...]
    sections: tuple[Section, ...]

    def section(self, name: str) -> Section:
        for section in self.sections:
            if section.name == name:
                return section
        raise NotFound(f"The report {self.name} has no section {name}.", code="section-not-found")


THROUGHPUT = Report(
    name="throughput",
    title="Throughput",
    description="Messages and bytes per topic, queue and minute; body sizes; the most frequent keys.",
    parameters=(
        Parameter("topics", "Topics", "topics", "Which topics; none chosen means all but the system's.", default=[]),
        Parameter(
            "minutes",
            "Look back (minutes)",
            "integer",
            "How far back from the start of the run, when no time range is given; a schedule's from the time it was due.",
            default=60,
            least=1,
            most=60 * 24 * 31,
        ),
        Parameter("start", "From", "time", "First store time to count; empty: see look back."),
        Parameter("end", "Until", "time", "First store time not to count any more; empty: as for look back."),
        Parameter(
            "top_keys", "Keys to list", "integer", "How many of the most frequent keys.", default=20, least=1, most=1000
        ),
    ),
    sections=(
        Section(
            "throughput",
            "Messages per minute",
            (
                Column("topic", "Topic", "text"),
                Column("group", "Broker group", "text"),
                Column("queue_id", "Queue", "integer"),
                Column("minute", "Minute", "time"),
                Column("messages", "Messages", "integer"),
                Column("bytes", "Body bytes", "bytes"),
            ),
            sort=("-minute", "topic", "group", "queue_id"),
            chart=Chart("minute", "topic", "messages", step_s=60),
        ),
        Section(
            "sizes",
            "Body sizes",
            (
                Column("topic", "Topic", "text"),
                Column("messages", "Messages", "integer"),
                Column("mean", "Mean", "bytes"),
                Column("p50", "Median ≈", "bytes"),
                Column("p90", "90 % ≈", "bytes"),
                Column("p99", "99 % ≈", "bytes"),
                Column("max", "Largest", "bytes"),
            ),
            sort=("-messages", "topic"),
            note="Median, 90 % and 99 % are approximate: off by at most 0.01 % of the topic's messages, in order of size.",
        ),
        Section(
            "keys",
            "Most frequent keys",
            (
                Column("topic", "Topic", "text"),
                Column("key", "Key", "text"),
                Column("messages", "Messages", "integer"),
            ),
            sort=("-messages", "topic", "key"),
        ),
    ),
)

_LATENESS: Final = (
    Column("p50_ms", "Half ≈ (ms late)", "integer"),
    Column("p95_ms", "95 % ≈ (ms)", "integer"),
    Column("p99_ms", "99 % ≈ (ms)", "integer"),
    Column("max_ms", "Latest (ms)", "integer"),
)
_OTHERS: Final = (
    Column("rolled", "Rolled", "integer"),
    Column("recalled", "Recalled", "integer"),
    Column("overdue", "Overdue", "integer"),
    Column("early", "Early", "integer"),
    Column("duplicates", "Repeats", "integer"),
)

TIMERS = Report(
    name="timers",
    title="Timer accuracy",
    description="How late timers were delivered, per topic and hour; how many were rolled, recalled, early or repeated; what is "
    "overdue and what waits.",
    parameters=(
        Parameter("topics", "Topics", "topics", "Which topics; none chosen means all but the system's.", default=[]),
        Parameter(
            "minutes",
            "Look back (minutes)",
            "integer",
            "How far back from the start of the run, when no time range is given; a schedule's from the time it was due.",
            default=60 * 24,
            least=1,
            most=60 * 24 * 31,
        ),
        Parameter("start", "From", "time", "First time of delivery to count; empty: see look back."),
        Parameter("end", "Until", "time", "First time of delivery not to count any more; empty: as for look back."),
    ),
    sections=(
        Section(
            "hours",
            "Lateness per hour",
            (
                Column("topic", "Topic", "text"),
                Column("hour", "Hour", "time"),
                Column("delivered", "Delivered", "integer"),
                *_LATENESS,
                *_OTHERS,
            ),
            sort=("-hour", "topic"),
            chart=Chart("hour", "topic", "p99_ms", step_s=3600, largest=True),
            note="The chart shows within how many milliseconds 99 of 100 timers came. What was delivered is counted in the hour "
            "in which its message was stored, what was recalled in that of the recall, what is overdue in that in which it was "
            "due. Half, 95 % and 99 % are approximate: off by at most 0.01 % of the deliveries, in order of lateness. They come "
            "at the end.",
        ),
        Section(
            "topics",
            "Topics",
            (
                Column("topic", "Topic", "text"),
                Column("delivered", "Delivered", "integer"),
                *_LATENESS,
                *_OTHERS,
                Column("overdue_since", "Overdue since", "time"),
                Column("pending", "Waiting", "integer"),
                Column("next_due", "Next due", "time"),
            ),
            sort=("order", "-delivered", "topic"),
            note="Rolled: appended again on the way, since the message waited longer than a file of the log lasts. Overdue: due "
            "in the range, and at its end neither delivered nor recalled; what is set aside is among them. Waiting: due later "
            "than the range.",
        ),
        Section(
            "lateness",
            "How late",
            (
                Column("late", "Late by", "text"),
                Column("delivered", "Delivered", "integer"),
                Column("share", "Share", "share"),
                Column("up_to_here", "Up to here", "share"),
            ),
            sort=("order",),
        ),
        Section(
            "groups",
            "Broker groups, as their masters say",
            (
                Column("group", "Broker group", "text"),
                Column("waiting", "Waiting", "integer"),
                Column("aside", "Set aside", "integer"),
                Column("overdue_ms", "Overdue for (ms)", "integer"),
                Column("delivered", "Delivered", "integer"),
                Column("rolled", "Rolled", "integer"),
                Column("recalled", "Recalled", "integer"),
                Column("lost", "Dropped", "integer"),
            ),
            sort=("group",),
            note="As of when the report was made, of all topics. What is counted was done by the master since it started. Set "
            "aside: cannot be read or stored, and is tried again. Dropped: the topic is gone, or it could not be read for an "
            "hour.",
        ),
    ),
)

CATALOGUE: dict[str, Report] = {report.name: report for report in (THROUGHPUT, TIMERS)}


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a section's result. `key` names it within the section, in at most 300 characters."""

    section: str
    key: str
    data: Mapping[str, Any]


def report(name: object) -> Report:
    """The report of that name, or NotFound with the names there are."""
    found = CATALOGUE.get(name) if isinstance(name, str) else None
    if found is None:
        raise NotFound(f"There is no report {name}; there are {', '.join(CATALOGUE)}.", code="report-not-found")
    return found


def clean_parameters(rules: Rules, chosen: Report, given: object) -> dict[str, Any]:
    """The report's parameters, checked; broken rules go to `rules` under `parameters.<name>`."""
    values = given if isinstance(given, dict) else {}
    if given not in (None, "") and not isinstance(given, dict):
        rules.refuse("parameters", "must be an object")
    unknown = sorted(set(values) - {parameter.name for parameter in chosen.parameters})
    if unknown:
        rules.refuse("parameters", f"{', '.join(unknown)}: {chosen.name} has no such parameter")
    mine = Rules(values)
    cleaned: dict[str, Any] = {}
    for parameter in chosen.parameters:
        if parameter.type == "topics":
            cleaned[parameter.name] = _topics(mine, parameter.name, values.get(parameter.name))
        elif parameter.type == "integer":
            cleaned[parameter.name] = mine.integer(
                parameter.name, least=parameter.least, most=parameter.most, default=parameter.default
            )
        else:
            cleaned[parameter.name] = _time(mine, parameter.name, values.get(parameter.name))
    if cleaned.get("start") and cleaned.get("end") and cleaned["start"] >= cleaned["end"]:
        mine.refuse("end", "must be later than the start")
    for name, sentences in mine.broken.items():
        for sentence in sentences:
            rules.refuse(f"parameters.{name}", sentence)
    return cleaned


def _topics(rules: Rules, name: str, given: object) -> list[str]:
    topics = given if given not in (None, "") else []
    if isinstance(topics, str):
        topics = topics.replace(",", " ").split()
    if not isinstance(topics, list) or len(topics) > 100 or not all(isinstance(topic, str) for topic in topics):
        rules.refuse(name, "must be a list of at most 100 topic names")
        return []
    for topic in topics:
        if not LEGAL_NAME.fullmatch(topic) or len(topic) > MAX_TOPIC_LENGTH:
            rules.refuse(name, f"{topic[:40]!r} is not a topic name")
    return sorted(set(topics))


def _time(rules: Rules, name: str, given: object) -> str | None:
    if given in (None, ""):
        return None
    try:
        moment = datetime.fromisoformat(given if isinstance(given, str) else "")
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        rules.refuse(name, "must be a time with its zone, such as 2026-01-31T12:00:00Z")
        return None
    if not EARLIEST <= moment <= LATEST:
        rules.refuse(name, f"must be from {EARLIEST:%Y} to {LATEST:%Y}")
        return None
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
