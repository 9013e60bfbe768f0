"""What was looked for a moment ago, and was not there: who asks the same is parked without another look (pure).

Most receives of idle clients come again when their wait ends, and a look at all queues of a topic is half of what such a receive
costs. It finds what the one before found, unless something was told to have arrived, or the metadata changed: the topics, groups
and offsets by which it goes. A message that is readable and not told yet is no exception: whoever is parked now is there when it
is told, as those are who looked before it came.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final, NamedTuple
from weakref import ReferenceType, ref

from brokerd.filters.message_filter import MessageFilter

_MAX_QUESTIONS: Final = 10_000


class _Looked(NamedTuple):
    version: int
    message_filter: ReferenceType[
        MessageFilter
    ]  # of nobody's any more, it is not kept: all filters together are bounded


class KnownEmpty:
    """Owned by the pops that wait. `version` is another number when the metadata has changed."""

    def __init__(self, version: Callable[[], int]) -> None:
        self._version = version
        self._topics: dict[str, dict[Hashable, _Looked]] = {}
        self._count = 0

    def note(self, topic: str, question: Hashable, message_filter: MessageFilter) -> None:
        """A look with that filter has found nothing."""
        if self._count >= _MAX_QUESTIONS:
            self.forget()
        questions = self._topics.setdefault(topic, {})
        self._count += question not in questions
        questions[question] = _Looked(self._version(), ref(message_filter))

    def knows(self, topic: str, question: Hashable, message_filter: MessageFilter) -> bool:
        """A look with that very filter would find nothing."""
        questions = self._topics.get(topic)
        looked = questions.get(question) if questions is not None else None
        return looked is not None and looked.message_filter() is message_filter and looked.version == self._version()

    def is_known(self, topic: str) -> bool:
        """Whether anything is known of the topic."""
        return topic in self._topics

    def arrived(self, topic: str) -> None:
        """Something may be there."""
        questions = self._topics.pop(topic, None)
        if questions is not None:
            self._count -= len(questions)

    def forget(self) -> None:
        """Somebody else may have changed anything."""
        self._topics.clear()
        self._count = 0
