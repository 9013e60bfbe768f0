"""Every kind of change that the console can make, in one table: what the modules of the console's parts define."""

from __future__ import annotations

from typing import Final

from webapp.access import changes as access
from webapp.accounts import changes as accounts
from webapp.accounts import read_right_changes
from webapp.clusters import changes as clusters
from webapp.clusters import controllers, retiring, switching
from webapp.groups import changes as groups
from webapp.messages import changes as messages
from webapp.operations.kinds import Kind
from webapp.reports import changes as reports
from webapp.timers import changes as timers
from webapp.topics import changes as topics
from webapp.transactions import changes as transactions

_EVERY = [
    kind
    for module in (
        access,
        accounts,
        clusters,
        controllers,
        groups,
        messages,
        read_right_changes,
        reports,
        retiring,
        switching,
        timers,
        topics,
        transactions,
    )
    for kind in vars(module).values()
    if isinstance(kind, Kind)
]
KINDS: Final = {kind.name: kind for kind in _EVERY}
assert len(KINDS) == len(_EVERY), "two kinds share a name"
