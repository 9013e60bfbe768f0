"""Messages of the tier by their keys (shell): one range of each object of the index that may know some, then the messages.

The index knows hashes. Every message that it names is read and looked at, so what is of another key, was
cut, has expired, or belongs to an earlier topic of the same name, does not come out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from heapq import nlargest
from typing import Final, NamedTuple

from brokerd.store.index.hashing import key_hash
from brokerd.store.index.search import MOST_BYTES, Question, answers
from brokerd.tiers.objects.interface import NotThere, ObjectStore, ObjectStoreError
from brokerd.tiers.reading.cold_reads import ColdReads
from brokerd.tiers.upload.uploader import Loop
from remoting import codes
from remoting.errors import LogboomError, RequestError
from remoting.record.fields import store_timestamp_of
from remoting.tier.contents import Queue, TierContents
from remoting.tier.index import IndexObject, Posting, mixed, postings_of

log = logging.getLogger(__name__)

_MOST_OBJECTS: Final = 1000
_MOST_READ: Final = 1000  # messages
_PATIENCE_S: Final = 10.0

Done = Callable[[Sequence[bytes] | LogboomError, bool], None]


class _Found(NamedTuple):
    timestamp_ms: int
    record: bytes


class ColdIndex:
    """`consuming.key_queries.ColdIndex`."""

    def __init__(
        self, objects: ObjectStore, contents: Callable[[], TierContents], messages: ColdReads, loop: Loop
    ) -> None:
        self._objects = objects
        self._contents = contents
        self._messages = messages
        self._loop = loop

    def find(self, question: Question, known: Collection[tuple[int, int]], done: Done) -> None:
        """Messages of the tier that answer it, but for the known ones (queue id, queue offset); `done` is called later with them
        and with whether everything was looked at."""
        self._loop.spawn(self._find(question, known, done), "look for a key in the tier")

    async def _find(self, question: Question, known: Collection[tuple[int, int]], done: Done) -> None:
        search = Search(question, set(known), self._loop.scheduler.time() + _PATIENCE_S)
        try:
            is_complete = await self._search(search)
        except (ObjectStoreError, ValueError) as error:
            log.warning("a key of %s cannot be looked for in the tier: %s", question.topic, error)
            text = f"a key of {question.topic} cannot be looked for in the tier: {error}"
            done(RequestError(codes.SYSTEM_ERROR, text), False)
        else:
            done(search.records(), is_complete)

    async def _search(self, search: Search) -> bool:
        """Whether everything was looked at. Raises ObjectStoreError, and ValueError for what is damaged."""
        entries = [entry for entry in self._contents().index.values() if search.may_hold(entry)]
        entries.sort(key=lambda entry: -entry.end_ms)
        for number, entry in enumerate(entries):
            if search.has_newer(entry.end_ms):
                return True
            if number >= _MOST_OBJECTS:
                return False
            for posting in await self._items(entry, search.hash):
                if search.wants(posting):
                    if search.is_over(self._loop.scheduler.time()):
                        return False
                    queue = Queue(search.question.topic, posting.queue_id)
                    search.look(posting, await self._messages.fetched_record(queue, posting.queue_offset))
        return True

    async def _items(self, entry: IndexObject, hashed: int) -> Sequence[Posting]:
        """Those of a hash: one request."""
        position, length = entry.range_of(hashed)
        try:
            return postings_of(entry, hashed, bytes(await self._objects.get(entry.name, position, length)))
        except NotThere:
            if entry.key not in self._contents().index:
                return ()  # it went meanwhile: what it named is in another one, or has expired
            raise


class Search:
    """What one question has come to (pure)."""

    def __init__(self, question: Question, known: set[tuple[int, int]], deadline_s: float) -> None:
        self.question = question
        self.hash = mixed(key_hash(question.topic, question.key))
        self._known = known
        self._deadline_s = deadline_s
        self._found: dict[tuple[int, int], _Found] = {}
        self._looked_at = self._bytes = 0

    def may_hold(self, entry: IndexObject) -> bool:
        """Whether it has messages of that topic and time: it may have begun long before (storage.md 8.5, S-9)."""
        is_of_that_time = entry.begin_ms <= self.question.end_ms and entry.end_ms >= self.question.begin_ms
        return is_of_that_time and entry.may_have(self.question.topic)

    def has_newer(self, timestamp_ms: int) -> bool:
        """Whether as many as are wanted were found that are newer."""
        if len(self._found) < self.question.most:
            return False
        newest = nlargest(self.question.most, (each.timestamp_ms for each in self._found.values()))
        return not newest or newest[-1] > timestamp_ms

    def wants(self, posting: Posting) -> bool:
        """Whether the message has to be looked at."""
        if (posting.queue_id, posting.queue_offset) in self._known:
            return False
        if not self.question.begin_ms <= posting.timestamp_ms <= self.question.end_ms:
            return False
        return not self.has_newer(posting.timestamp_ms)

    def is_over(self, now_s: float) -> bool:
        """Whether it has taken more than any question may."""
        return self._looked_at >= _MOST_READ or self._bytes >= MOST_BYTES or now_s >= self._deadline_s

    def look(self, posting: Posting, record: bytes | None) -> None:
        """The message is this one; None: it is gone."""
        key = posting.queue_id, posting.queue_offset
        self._known.add(key)
        self._looked_at += 1
        if record is not None and answers(self.question, record):
            self._found[key] = _Found(store_timestamp_of(record), record)
            self._bytes += len(record)

    def records(self) -> list[bytes]:
        """The newest ones, oldest first."""
        newest = nlargest(self.question.most, self._found.items(), key=lambda each: (each[1].timestamp_ms, each[0]))
        return [found.record for _, found in reversed(newest)]
