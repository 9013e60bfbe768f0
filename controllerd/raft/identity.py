"""Who a directory belongs to: `raft/identity`, JSON that is replaced as a whole

    {"group", "node", "voters", "incarnation", "begun", "next", "reason", "lives", "check"}

A directory belongs to one controller of one group, made of these voters (none: it was brought into a group that was there
already). `incarnation` is which of its lives in the group this is, `begun` whether it has kept a log in it: from then on a log
that is missing is a log that was lost. When what it promised was lost, `next` is the incarnation that it asks to come back as,
and `reason` says why. `lives` has a text drawn at each of the last starts, the newest first: who does not know the life in which
the others met this node last is an older copy of its directory.

Invariants: the file has a checksum, and no other fields, so no flipped bit makes another identity of it; a new incarnation is
noted before anybody hears of it. Former versions wrote `group`, `node` and `voters` only; that is read as a first incarnation
that has begun. Only `log_file` uses this.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Final

import orjson

from controllerd.raft import checked_json
from controllerd.raft.incarnations import node_id
from controllerd.raft.quorum import NodeId
from remoting.disk import Disk
from remoting.errors import CorruptedFile

DIRECTORY: Final = "raft"
PATH: Final = f"{DIRECTORY}/identity"
_FORMER_FIELDS: Final = {"group", "node", "voters"}
_LISTS: Final = ("voters", "lives")
# A node whose starts nobody hears of may go through many; it must still know the life in which it was met last.
_LIVES: Final = 256


@dataclass(frozen=True, slots=True)
class Identity:
    group: str
    node: str
    voters: tuple[NodeId, ...]
    incarnation: str = ""
    begun: bool = False
    next: str = ""
    reason: str = ""
    lives: tuple[str, ...] = ()

    def started(self, life: str) -> Identity:
        """The same in another life."""
        return replace(self, lives=(life, *self.lives[: _LIVES - 1]))

    @property
    def node_id(self) -> NodeId:
        """Who that is in Raft."""
        return node_id(self.node, self.incarnation)

    @property
    def next_id(self) -> NodeId:
        """Who it asks to come back as."""
        return node_id(self.node, self.next)


def read(disk: Disk) -> Identity | None:
    """The identity of a directory, None of one without. Raises CorruptedFile."""
    content = disk.read_bytes(PATH)
    if content is None:
        return None
    try:
        fields = orjson.loads(content)
        if set(fields) == _FORMER_FIELDS:
            return _checked(Identity(fields["group"], fields["node"], tuple(fields["voters"]), begun=True))
        check = fields.pop(checked_json.CHECK)
        lists = {name: tuple(fields[name]) for name in _LISTS}
        identity = _checked(Identity(**{**fields, **lists}))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptedFile(f"{PATH} is damaged: {error}") from error
    if check != checked_json.check_of(asdict(identity)):
        raise CorruptedFile(f"{PATH} does not match its checksum")
    return identity


def write(disk: Disk, identity: Identity) -> None:
    """Put it in place. Raises StorageError."""
    fields = asdict(identity)
    disk.replace_bytes(PATH, checked_json.encode(fields, fields))


def _checked(identity: Identity) -> Identity:
    texts = (identity.group, identity.node, identity.incarnation, identity.next, identity.reason)
    if not all(isinstance(text, str) for text in (*texts, *identity.voters, *identity.lives)):
        raise ValueError("a field that is no text")
    if not isinstance(identity.begun, bool):
        raise ValueError("a field of another type")
    return identity
