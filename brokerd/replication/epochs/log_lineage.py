"""The name of a log in a group with fixed roles, kept beside it: drawn once by the master, taken over by its replicas."""

from __future__ import annotations

import re
import secrets
from typing import Final

from remoting.disk import SmallFiles
from remoting.errors import CorruptedFile, ProtocolError
from remoting.sealed_text import seal, unseal

LINEAGE_FILE: Final = "logLineage"
_NAME: Final = re.compile(r"[0-9a-f]{32}")


class LogLineage:
    """The file in the root of a broker's data directory."""

    def __init__(self, disk: SmallFiles) -> None:
        self._disk = disk

    def load(self, *, draw: bool) -> str:
        """The name; "" when there is none yet, or a new one, which is then kept, with `draw`. Raises CorruptedFile."""
        content = self._disk.read_bytes(LINEAGE_FILE)
        if content is None:
            if not draw:
                return ""
            name = secrets.token_hex(16)
            self.keep(name)
            return name
        name, is_sealed = unseal(content, " ", LINEAGE_FILE)
        if not _NAME.fullmatch(name):
            raise CorruptedFile(
                f"{LINEAGE_FILE} holds no name of a log; copy the file from another broker of the group"
            )
        if not is_sealed:  # of an earlier version
            self.keep(name)
        return name

    def keep(self, name: str) -> None:
        """Durable when it returns. Raises ProtocolError for what cannot be a name."""
        if not _NAME.fullmatch(name):
            raise ProtocolError(f"the master names its log {name[:60]!r}, which cannot be a name")
        self._disk.replace_bytes(LINEAGE_FILE, seal(name, " "))
