"""In which life each of the other controllers was met last: `raft/met`, JSON {"met": {id: life}, "check"}, replaced as a whole.

Who does not remember the life in which the others met it last runs on an older copy of its directory. The members must know that
after a restart of all of them, too: it is durable before a controller is admitted in a new life, which happens once for each of
its starts. A file that cannot be read, or written, is no harm but that: then it is known as long as this process lives.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection
from typing import Final

import orjson

from controllerd.raft import checked_json
from controllerd.raft.identity import DIRECTORY
from controllerd.raft.quorum import NodeId
from remoting.disk import Disk
from remoting.errors import StorageError

log = logging.getLogger(__name__)

PATH: Final = f"{DIRECTORY}/met"


class Acquaintances:
    """Lives by the ids of nodes. `note` blocks, and may be called from helper threads."""

    def __init__(self, disk: Disk | None = None) -> None:
        """Without a disk nothing outlives the process. Raises StorageError."""
        self._disk = disk
        self._lock = threading.Lock()
        self._lives = {} if disk is None else _decoded(disk.read_bytes(PATH))

    def life(self, node: NodeId) -> str | None:
        """In which life the node was met last, None of one that was not."""
        return self._lives.get(node)

    def note(self, node: NodeId, life: str, members: Collection[NodeId]) -> None:
        """The node was met in this life. What is known of those who are no members any more is dropped."""
        with self._lock:
            kept = {each: known for each, known in self._lives.items() if each in members}
            self._lives = kept | {node: life}
            if self._disk is None:
                return
            try:
                self._disk.replace_bytes(PATH, checked_json.encode({"met": self._lives}, self._lives))
            except StorageError as error:
                log.warning("who was met is forgotten at the next start: %s", error)


def _decoded(content: bytes | None) -> dict[NodeId, str]:
    try:
        told = orjson.loads(content or b"{}")
        lives = told.get("met") if isinstance(told, dict) else None
        if isinstance(lives, dict) and told.get(checked_json.CHECK) == checked_json.check_of(lives):
            return {node: str(life) for node, life in lives.items()}
    except ValueError:
        pass
    if content is not None:
        log.warning("%s is damaged: who was met before this start is not known", PATH)
    return {}
