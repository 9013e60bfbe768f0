"""`/ws/snapshot`: the snapshot as it changes.

Without `view` each message holds the snapshot as `GET /api/v1/cluster` shows it. With `view=<live part>` and `query=<the
page's query string>` it holds that part rendered, and with `view=bar` neither: only the verdict, for pages that show nothing
else live. Each message is complete, so a client that missed some just uses the next. `age_ms` is how old the snapshot was.
"""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from django.http import QueryDict

from remoting.facts.snapshot import GROUP
from webapp import live, snapshot
from webapp.accounts.permissions import Actor
from webapp.api.clusters import cluster_document
from webapp.feeds import Moment
from webapp.live import LivePart, Viewpoint
from webapp.pages import LIVE_PARTS
from webapp.push import Message, PushConsumer
from webapp.snapshot import Freshness, Snapshot

VERSION = 1
BAR = "bar"
OLDER_EVERY_MS = 10_000  # so often a snapshot that stays the same is sent again, because it says how old it is


class SnapshotConsumer(PushConsumer):
    """One viewer of the snapshot."""

    permission = "cluster.read"

    def subject(self) -> str:
        return GROUP

    async def open(self) -> bool:
        query = QueryDict(self.scope["query_string"][:4096])
        self._view = query.get("view", "")
        self._query = QueryDict(query.get("query", ""))
        self._part = LIVE_PARTS.get(self._view)
        self._sent: tuple[Any, ...] | None = None
        self._seq = 0
        return self._part is not None or self._view in {"", BAR}

    async def message(self, moment: Moment) -> Message | None:
        present = await moment.built("snapshot", partial(snapshot.current, fresh=True))
        state = _state(present)
        if state == self._sent:
            return None
        if self._part is not None:
            key = (state, self._view, self._query.urlencode(), Viewpoint.of(self.actor))
            body = await moment.built(key, partial(_with_part, present, self._part, self.actor, self._query))
        else:
            body = await moment.built((state, self._view), partial(_bar if self._view == BAR else _with_facts, present))
        self._sent = state
        self._seq += 1
        return Message(self._seq, body)


def _state(present: Snapshot) -> tuple[Any, ...]:
    """What differs when there is something new to show."""
    stale_for = present.age_ms // OLDER_EVERY_MS if present.freshness is Freshness.STALE and present.age_ms else 0
    return present.seq, present.freshness, stale_for


def _bar(present: Snapshot, **more: Any) -> str:
    return json.dumps(
        {
            "version": VERSION,
            "type": "snapshot",
            "snapshot_seq": str(present.seq),
            "as_of": present.as_of,
            "age_ms": present.age_ms,
            "freshness": str(present.freshness),
            "status": present.verdict.status,
            **more,
        }
    )


def _with_facts(present: Snapshot) -> str:
    return _bar(present, snapshot=cluster_document(present))


def _with_part(present: Snapshot, part: LivePart, actor: Actor, query: QueryDict) -> str:
    return _bar(present, html=live.render(part, actor, present, query))
