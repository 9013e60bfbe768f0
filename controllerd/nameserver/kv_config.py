"""Key-value configuration of the name server, by namespace; one small file, replaced whole at each change.

Each name server has its own: tools write to all of them.
"""

from __future__ import annotations

from typing import Final

import orjson

from remoting import codes
from remoting.disk import Disk
from remoting.errors import CorruptedFile, InvalidParameter, RequestError

PATH: Final = "kvConfig.json"
MAX_ENTRIES: Final = 10_000
MAX_TEXT: Final = 32_767


class KvConfig:
    """Reads the file when made. Raises CorruptedFile when it is not what this class wrote."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._tables: dict[str, dict[str, str]] = {}
        content = disk.read_bytes(PATH)
        if content is not None:
            try:
                self._tables = orjson.loads(content)["configTable"]
            except (ValueError, KeyError, TypeError) as error:
                raise CorruptedFile(f"{PATH} is not readable ({error}); restore or remove it") from error

    def get(self, namespace: str, key: str) -> str:
        """Raises RequestError QUERY_NOT_FOUND."""
        value = self._tables.get(namespace, {}).get(key)
        if value is None:
            raise RequestError(codes.QUERY_NOT_FOUND, f"no value for {key!r} in namespace {namespace!r}")
        return value

    def table(self, namespace: str) -> dict[str, str]:
        """Raises RequestError QUERY_NOT_FOUND when there is no such namespace."""
        table = self._tables.get(namespace)
        if table is None:
            raise RequestError(codes.QUERY_NOT_FOUND, f"no namespace {namespace!r}")
        return table

    def put(self, namespace: str, key: str, value: str) -> None:
        if not namespace or not key:
            raise RequestError(codes.SYSTEM_ERROR, "namespace and key must not be empty")
        if max(map(len, (namespace, key, value))) > MAX_TEXT or sum(map(len, self._tables.values())) >= MAX_ENTRIES:
            raise InvalidParameter(f"at most {MAX_ENTRIES} entries of {MAX_TEXT} characters are kept")
        self._tables.setdefault(namespace, {})[key] = value
        self._save()

    def delete(self, namespace: str, key: str) -> None:
        if self._tables.get(namespace, {}).pop(key, None) is not None:
            self._save()

    def _save(self) -> None:
        self._disk.replace_bytes(PATH, orjson.dumps({"configTable": self._tables}))
