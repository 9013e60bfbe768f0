"""One operation: bring a topic's exported files up to date, in all broker groups, for as long as a task may last.

It may be made twice, and again after a worker was killed: what is there is not written again. What is left after its time is due
still, and the next operation goes on with it.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from remoting.client.blocking import AdminClient, NodeOutcome
from remoting.errors import LogboomError
from remoting.facts.words import Outcome
from remoting.tier.object_stores import StorePlace
from tasks.changes import Change, ChangeFailed
from tasks.export.counts import Counts
from tasks.tier.manifest import Manifest
from tasks.tier.objects import Objects, TierError
from tasks.tier.settings import tier_place
from webapp.appliance.environment import TIER_OPTIONS, TIER_URL

if TYPE_CHECKING:
    from tasks.export.exporter import Exporter

log = logging.getLogger(__name__)

KIND: Final = "tier.export"
ATTRIBUTE: Final = "tier.export"
PARQUET: Final = "parquet"
WORK_FOR_S: Final = 30.0  # then others have their turn

OpenObjects = Callable[[StorePlace, str, str], Objects]


def wall_ms() -> int:
    """Milliseconds since the epoch: days end by the clock."""
    return int(time.time() * 1000)


class GroupExports(NamedTuple):
    """A broker group: the topics that are to be exported, None while nobody can say; or why its tier cannot be read."""

    name: str
    wanted: set[str] | None
    found: Exporter | TierError

    @property
    def exporter(self) -> Exporter:
        """Raises TierError."""
        if isinstance(self.found, TierError):
            raise self.found
        return self.found


def wanted_topics(client: AdminClient) -> dict[str, set[str]]:
    """Broker group -> its topics that ask for an export; groups without a master are left out."""
    return {
        broker_name: {
            topic for topic, config in topics.items() if (config.get("attributes") or {}).get(ATTRIBUTE) == PARQUET
        }
        for broker_name, topics in client.topic_configs().items()
    }


def group_exports(
    client: AdminClient,
    variables: Mapping[str, str],
    open_objects: OpenObjects = Objects.open,
    now_ms: Callable[[], int] = wall_ms,
) -> Iterator[GroupExports]:
    """Each broker group; nothing without a tier. Raises SettingsError, and what the client does."""
    place = tier_place(variables)
    if place is None:
        return
    from tasks.export.exporter import Exporter  # with pyarrow, which only exports need

    wanted = wanted_topics(client)
    for group in client.cluster_view().groups:
        name = group.broker_name
        objects = open_objects(place, group.cluster_name, name)
        manifest = Manifest(objects)
        try:
            manifest.refresh()
        except TierError as error:
            yield GroupExports(name, wanted.get(name), error)
        else:
            yield GroupExports(name, wanted.get(name), Exporter(objects, name, manifest.contents, now_ms))


def due_topics(exports: GroupExports) -> Iterator[str]:
    """The topics of the group for which there is something to do, also when that is to say why it cannot be done."""
    wanted = exports.wanted or set()
    try:
        topics = wanted | exports.exporter.topics()
    except TierError as error:
        log.warning("the tier of %s cannot be read: %s", exports.name, error)
        yield from wanted
        return
    for topic in topics:
        try:
            is_due = exports.exporter.has_work(topic, topic in wanted)
        except LogboomError as error:
            log.warning("what is to be exported of %s at %s is not known: %s", topic, exports.name, error)
            is_due = True
        if is_due:
            yield topic


def export(
    change: Change,
    variables: Mapping[str, str] = os.environ,
    open_objects: OpenObjects = Objects.open,
    now_ms: Callable[[], int] = wall_ms,
) -> dict[str, Any]:
    """Write what is due of the topic, remove what is not kept. The result counts files, and says whether there is `more`."""
    topic, began_s, counts, more = change.parameters["name"], change.now_s(), Counts(), False
    if tier_place(variables) is None:
        raise ChangeFailed(
            "no-tier",
            f"The worker does not know the tier: start it with {TIER_URL}, and {TIER_OPTIONS} if the store needs it.",
        )

    def go_on(so_far: Counts) -> bool:
        change.tell_progress(so_far.files, None, _written(so_far))
        return change.now_s() - began_s < WORK_FOR_S

    failures = []
    for group in group_exports(change.client, variables, open_objects, now_ms):
        try:
            counts.removed += group.exporter.remove_old(topic)
            if group.wanted is not None and topic in group.wanted:
                more = not group.exporter.export(topic, counts, go_on) or more
        except LogboomError as error:
            failures.append(f"{group.name}: {error}")
            change.record([NodeOutcome(group.name, Outcome.REFUSED, str(error))])
        else:
            change.record([NodeOutcome(group.name, Outcome.CONFIRMED)])
    if failures:
        raise ChangeFailed("export-failed", f"{topic} was not exported everywhere: {'; '.join(failures)}")
    return {**asdict(counts), "more": more, "sentence": _sentence(counts, more)}


def _sentence(counts: Counts, more: bool) -> str:
    """What was done, for people."""
    if not counts.files and not counts.removed:
        return "Nothing is due now: no queue has 64 MiB more in the tier, and none has an earlier day that is not in files."
    sentence = f"{_written(counts)} ({counts.bytes / (1 << 20):,.1f} MiB)"
    if counts.removed:
        sentence += f", {_counted(counts.removed, 'old file')} removed"
    return f"{sentence}.{' More is due, and goes on in a moment.' if more else ''}"


def _written(counts: Counts) -> str:
    return f"{_counted(counts.files, 'file')} with {_counted(counts.messages, 'message')} written"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


EXPORTS: Final = {KIND: export}
