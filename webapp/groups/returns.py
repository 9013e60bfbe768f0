"""Where messages of a consumer group go that it did not handle: its retry topics and its dead letters (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remoting.facts.snapshot import ConsumerGroup, Topic
from remoting.names import dead_letter_topic_of, group_of_retry_topic, is_retry_topic


def returns(group: ConsumerGroup, topics: Mapping[str, Topic]) -> list[dict[str, Any]]:
    """Those that are there, of `topics` by name. `lag` is what the group has still to receive; nobody receives dead letters.

    A pop group has a retry topic for each topic; in the older form of its name, group and topic cannot be told apart, so that it
    counts only where the group consumes it.
    """
    name = group.name
    consumed = {each.topic: each for each in group.topics}
    dead_letters = dead_letter_topic_of(name)
    own = [
        topic
        for topic in topics
        if topic == dead_letters
        or (is_retry_topic(topic) and (group_of_retry_topic(topic) == name or topic in consumed))
    ]
    returned = {topic: each for topic, each in consumed.items() if topic != dead_letters}
    return [
        {
            "topic": topic,
            "kind": "dead-letter" if topic == dead_letters else "retry",
            "message_count": topics[topic].message_count,
            "lag": returned[topic].lag if topic in returned else None,
            "lag_at_least": topic in returned and returned[topic].lag_at_least,
        }
        for topic in sorted(own, key=lambda topic: (topic == dead_letters, topic))
    ]
