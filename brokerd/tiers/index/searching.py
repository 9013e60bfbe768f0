"""Messages of the tier by their keys (shell): one range of each object of the index that may know some, then the messages.

Objects are asked from the newest on, one first and then more and more of them side by side: a key of one message is looked for in
all of them, and a common one is found in the first. The index knows hashes. Every message that it names is read and looked at, so
what is of another key, was cut, has expired, or belongs to an earlier topic of the same name, does not come out.
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
_SIDE_BY_SIDE: Final = 16  # of these are asked for one question
_MOST_ASKED: Final = 64  # for all questions together, but for the next one of each
_MOST_READ: Final = 1000  # messages
_PATIENCE_S: Final = 10.0  # of who asked; what was found until then is all that he gets

Done = Callable[[Sequence[bytes] | LogboomError, bool], None]


class _Found(NamedTuple):
    timestamp_ms: int
    record: bytes


class ColdIndex:
    """`consuming.key_queries.ColdIndex`."""

    def __init__(
        self, objects: ObjectStore, contents: Callable[[], TierContents], messages: ColdReads, loop: Loop
    ) -> None:
        self.messages = messages
        self.loop = loop
        self.asking = 0  # objects, for all questions together
        self._objects = objects
        self._contents = contents

    def find(self, question: Question, known: Collection[tuple[int, int]], done: Done) -> None:
        """Messages of the tier that answer it, but for the known ones (queue id, queue offset); `done` is called later with them
        and with whether everything was looked at."""
        search = Search(question, set(known))
        entries = [entry for entry in self._contents().index.values() if search.may_hold(entry)]
        entries.sort(key=lambda entry: -entry.end_ms)
        self.loop.scheduler.call_soon(_Running(self, search, entries, done).go_on)

    async def items(self, entry: IndexObject, hashed: int) -> Sequence[Posting]:
        """Those of a hash: one request. Raises ObjectStoreError, and ValueError for what is damaged."""
        position, length = entry.range_of(hashed)
        try:
            return postings_of(entry, hashed, bytes(await self._objects.get(entry.name, position, length)))
        except NotThere:
            if entry.key not in self._contents().index:
                return ()  # it went meanwhile: what it named is in another one, or has expired
            raise


class _Running:
    """One question: what objects of the index name is looked at in the order of these, as it comes."""

    def __init__(self, index: ColdIndex, search: Search, entries: Sequence[IndexObject], done: Done) -> None:
        self._index = index
        self._search = search
        self._entries = entries[:_MOST_OBJECTS]
        self._are_all = len(entries) <= _MOST_OBJECTS
        self._done: Done | None = done
        self._asked = self._looked_at = 0  # so many of the entries
        self._came: dict[int, Sequence[Posting] | ObjectStoreError | ValueError] = {}
        self._is_looking = False
        self._patience = index.loop.scheduler.call_later(_PATIENCE_S, self._end, False)

    def go_on(self) -> None:
        """Ask for what comes next, unless all is done."""
        if self._done is None:
            return
        if self._looked_at == len(self._entries):
            self._end(self._are_all)
        elif self._search.has_newer(self._entries[self._looked_at].end_ms):
            self._end(True)
        else:
            self._ask()

    def _ask(self) -> None:
        side_by_side = min(_SIDE_BY_SIDE, 1 << min(self._looked_at, _SIDE_BY_SIDE))
        upto = min(len(self._entries), self._looked_at + side_by_side)
        while self._asked < upto and (self._asked == self._looked_at or self._index.asking < _MOST_ASKED):
            self._index.asking += 1
            self._index.loop.spawn(self._fetch(self._asked), "look for a key in the tier")
            self._asked += 1

    async def _fetch(self, number: int) -> None:
        """The items of an entry; who brings the one that is next looks at it, and at what is there behind it."""
        try:
            self._came[number] = await self._index.items(self._entries[number], self._search.hash)
        except (ObjectStoreError, ValueError) as error:
            self._came[number] = error
        finally:
            self._index.asking -= 1
        if self._is_looking:
            return
        self._is_looking = True
        try:
            while self._done is not None and self._looked_at in self._came:
                await self._look(self._came.pop(self._looked_at))
        except (ObjectStoreError, ValueError) as error:
            if self._done is not None:
                self._fail(error)
        finally:
            self._is_looking = False

    async def _look(self, items: Sequence[Posting] | ObjectStoreError | ValueError) -> None:
        """At those of the next entry. Raises ObjectStoreError, and ValueError for what is damaged."""
        if isinstance(items, ObjectStoreError | ValueError):
            raise items
        search = self._search
        for posting in items:
            if self._done is None:
                return
            if search.wants(posting):
                if search.is_over:
                    self._end(False)
                    return
                queue = Queue(search.question.topic, posting.queue_id)
                search.look(posting, await self._index.messages.fetched_record(queue, posting.queue_offset))
        self._looked_at += 1
        self.go_on()

    def _fail(self, error: ObjectStoreError | ValueError) -> None:
        topic = self._search.question.topic
        log.warning("a key of %s cannot be looked for in the tier: %s", topic, error)
        text = f"a key of {topic} cannot be looked for in the tier: {error}"
        self._tell(RequestError(codes.SYSTEM_ERROR, text), False)

    def _end(self, is_complete: bool) -> None:
        self._tell(self._search.records(), is_complete)

    def _tell(self, found: Sequence[bytes] | LogboomError, is_complete: bool) -> None:
        self._patience.cancel()
        done, self._done = self._done, None
        assert done is not None, "it ends once"
        done(found, is_complete)


class Search:
    """What one question has come to (pure)."""

    def __init__(self, question: Question, known: set[tuple[int, int]]) -> None:
        self.question = question
        self.hash = mixed(key_hash(question.topic, question.key))
        self._known = known
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

    @property
    def is_over(self) -> bool:
        """Whether it has read more than any question may."""
        return self._looked_at >= _MOST_READ or self._bytes >= MOST_BYTES

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
