"""`/ws/snapshot`: the snapshot as it changes.

Without `view` each message holds the snapshot as `GET /api/v1/cluster` shows it. With `view=<live part>` and `query=<the
page's query string>` it holds that part rendered, and with `view=bar` neither: only the verdict, for pages that show nothing
else live. Each message is complete, so a client that missed some just uses the next.
"""

from __future__ import annotations

from typing import Any

from django.http import QueryDict

from remoting.facts.snapshot import GROUP
from webapp import live, snapshot
from webapp.api.clusters import cluster_document
from webapp.pages import LIVE_PARTS
from webapp.push import PushConsumer

VERSION = 1
BAR = "bar"


class SnapshotConsumer(PushConsumer):
    """One viewer of the snapshot."""

    permission = "cluster.read"

    def announcement_groups(self) -> list[str]:
        return [GROUP]

    async def open(self) -> bool:
        query = QueryDict(self.scope["query_string"][:4096])
        self._view = query.get("view", "")
        self._query = QueryDict(query.get("query", ""))
        self._part = LIVE_PARTS.get(self._view)
        self._sent: tuple[int, str] | None = None
        self._seq = 0
        return self._part is not None or self._view in {"", BAR}

    async def snapshot_changed(self, event: dict[str, Any]) -> None:
        self.wake()

    def build(self) -> dict[str, Any] | None:
        present = snapshot.current(fresh=self._sent is not None)
        state = (present.seq, str(present.freshness))
        if state == self._sent:
            return None
        self._sent = state
        self._seq += 1
        message = {
            "version": VERSION,
            "type": "snapshot",
            "seq": self._seq,
            "snapshot_seq": str(present.seq),
            "as_of": present.as_of,
            "freshness": str(present.freshness),
            "status": present.verdict.status,
        }
        if self._part is not None:
            message["html"] = live.render(self._part, self.actor, present, self._query)
        elif self._view != BAR:
            message["snapshot"] = cluster_document(present)
        return message
