"""Every live part of the console's pages, by name."""

from __future__ import annotations

from typing import Final

from webapp.clusters.live import landing
from webapp.groups.live import group, group_list
from webapp.topics.live import topic, topic_list

LIVE_PARTS: Final = {part.name: part for part in (landing, group, group_list, topic, topic_list)}
