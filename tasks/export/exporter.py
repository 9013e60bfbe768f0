"""Keeping the exported files of a broker group's topic as its tier has the messages: write what is due, remove what is not kept.

The listing says what was written: a file is there as a whole under its name, or not at all, so an export that was killed is gone
on with behind the last one. A queue's file is due when it is full or its day is over; until then nothing is read for it but one
record. Files of messages that expired, of a deleted topic, and of a log that was cut are removed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from remoting.tier.contents import Queue, TierContents
from remoting.tier.segments import QueueSegments
from tasks.export.counts import Counts
from tasks.export.writing import FILE_BYTES, ExportWriter, store_times
from tasks.spark import records
from tasks.tier import parquet
from tasks.tier.exports import DAY_MS, DIRECTORY, ExportFile, by_queue, date_of, directory_of, disjoint
from tasks.tier.messages import Run, place_of, portions, runs
from tasks.tier.objects import Objects, TierError

log = logging.getLogger(__name__)

# A day's last messages may come to the tier later than they were stored: what is uploaded late makes a file of its own.
TAIL_AFTER_MS: Final = 3_600_000
_SAME: Final = ("msg_id", "store_ts", "body_size", "born_ts")
_ENDLESS: Final = 2**63 - 1


class Due(NamedTuple):
    """Messages of a queue from `first` on, of which a file may be made; they are in `run`."""

    queue: Queue
    first: int
    run: Run
    is_last: bool  # nothing follows the run in the tier yet


class Exporter:
    """That of a broker group. Every method raises TierError, and ProtocolError for records that are none."""

    def __init__(
        self,
        objects: Objects,
        broker_name: str,
        contents: TierContents,
        now_ms: Callable[[], int],
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._objects = objects
        self._broker_name = broker_name
        self._contents = contents
        self._now_ms = now_ms
        self._file_bytes = file_bytes

    def remove_old(self, topic: str) -> int:
        """Remove the files of the topic whose messages the tier has not any more; how many."""
        return self._remove(list(self._old(self._files(topic))))

    def topics(self) -> set[str]:
        """Those that have files."""
        return {each.topic for each in by_queue(each.name for each in self._objects.list(DIRECTORY))}

    def has_work(self, topic: str, is_wanted: bool) -> bool:
        """Whether something is due, or is to be removed."""
        files = self._files(topic)
        if any(True for _ in self._old(files)):
            return True
        return is_wanted and any(True for _ in self._due(topic, files))

    def export(self, topic: str, counts: Counts, go_on: Callable[[Counts], bool]) -> bool:
        """Write what is due, a file at a time, while `go_on` says so; False when it did not."""
        for due in self._due(topic, self._files(topic)):
            following: Due | None = due
            while following is not None and following.first < due.run.end and self._is_due(following):
                if not go_on(counts):
                    return False
                end = self._write(following, counts)
                following = None if end is None else following._replace(first=end)
        return True

    # ---- what there is

    def _files(self, topic: str) -> dict[Queue, list[ExportFile]]:
        found = by_queue(each.name for each in self._objects.list(directory_of(topic)))
        return {queue: files for queue, files in found.items() if queue.topic == topic}

    def _old(self, files: dict[Queue, list[ExportFile]]) -> Iterator[ExportFile]:
        if not self._contents.log_id:
            return  # nothing is known of this tier
        for queue, of_queue in files.items():
            segments = self._contents.queues.get(queue, QueueSegments())
            kept = set(disjoint(of_queue))
            for each in of_queue:
                if each.end <= segments.first or each.end > segments.end or each not in kept:
                    yield each

    def _remove(self, files: list[ExportFile]) -> int:
        self._objects.remove([each.name for each in files])
        for each in files:
            log.info("removed %s: the tier does not have these messages any more", each.name)
        return len(files)

    # ---- what is due

    def _due(self, topic: str, files: dict[Queue, list[ExportFile]]) -> Iterator[Due]:
        for queue, segments in sorted(self._contents.queues.items()):
            if queue.topic != topic:
                continue
            begin = self._end_of(queue, files.get(queue, []), segments)
            for run in runs(segments, begin, _ENDLESS):
                due = Due(queue, run.first, run, run.end == segments.end)
                if self._is_due(due):
                    yield due

    def _end_of(self, queue: Queue, files: list[ExportFile], segments: QueueSegments) -> int:
        """Where to go on: behind the last file that is of this log."""
        for last in reversed(list(disjoint(files))):
            if segments.first < last.end <= segments.end and self._is_of_log(last, segments):
                return last.end
            self._remove([last])
        return segments.first

    def _is_of_log(self, file: ExportFile, segments: QueueSegments) -> bool:
        """Whether its last message is the one that the tier has at that offset: a topic may have been made anew, a log cut."""
        place = file.end - 1
        segment = segments.at(place)
        if segment is None or segment.first > place:
            return True  # nothing contradicts it
        schema = records.schema(_SAME)
        written = [batch.to_pylist() for batch, _ in parquet.rows(self._objects, file.name, place, file.end, schema)]
        for body in portions(self._objects, file.queue, segment, place, file.end):
            stored = records.decode(body, records.scan(body), self._broker_name, _SAME).to_pylist()
            return written == [stored]
        return False

    def _is_due(self, due: Due) -> bool:
        last = due.run.segments[-1]
        if not due.is_last:
            return True  # what follows is not there: the file ends where the run does
        segment, *others = [each for each in due.run.segments if each.end > due.first]
        begin = place_of(self._objects, due.queue, segment, due.first)
        if segment.message_end - begin + sum(each.message_bytes for each in others) >= self._file_bytes:
            return True
        for body in portions(self._objects, due.queue, segment, due.first, due.first + 1):
            day = int(store_times(body, records.scan(body))[0]) // DAY_MS
            return last.last_ms // DAY_MS != day or self._is_over(day)
        return False

    def _is_over(self, day: int) -> bool:
        return self._now_ms() >= (day + 1) * DAY_MS + TAIL_AFTER_MS

    # ---- one file

    def _write(self, due: Due, counts: Counts) -> int | None:
        """Where the next file begins; None when this one is not full, and its day is not over."""
        writer = ExportWriter(self._broker_name, due.first, self._file_bytes)
        for body in self._records(due):
            writer.add(body)
            if writer.is_full:
                break
        if writer.end == due.first:
            raise TierError(f"the tier has no message {due.first} of {due.queue.topic}/{due.queue.queue_id}")
        if not writer.is_full and due.is_last and not self._is_over(writer.day):
            return None
        file = ExportFile(due.queue, due.first, writer.end, date_of(writer.day * DAY_MS))
        content = writer.finish()
        if self._objects.put(file.name, content):
            counts.files += 1
            counts.messages += file.end - file.first
            counts.bytes += len(content)
        return file.end

    def _records(self, due: Due) -> Iterator[bytes]:
        for segment in due.run.segments:
            if segment.end > due.first:
                start = max(segment.first, due.first)
                yield from portions(self._objects, due.queue, segment, start, min(segment.end, due.run.end))
