"""The objects of a broker group's tier, one request after another: for workers, which have nothing else to do meanwhile."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from remoting.disk import sync_path
from remoting.errors import LogboomError
from remoting.tier.complaints import advice_of, is_too_short, reason_of
from remoting.tier.names import group_directory
from remoting.tier.object_stores import StorePlace, open_store

_REQUEST_TIMEOUT_MS: Final = 30_000
_WHOLE_BYTES: Final = 1 << 30  # of an object that is read as a whole


def place_of(url: str, options_path: str, names: tuple[str, str]) -> StorePlace | None:
    """None when the url is empty; `names` are those of the settings, for sentences."""
    return StorePlace(url, options_path, _REQUEST_TIMEOUT_MS, names) if url else None


class TierError(LogboomError):
    """The object store did not do what it was asked, or what is there is not what was stored; the text says which."""


class NotThere(TierError):
    """There is no such object, or it is shorter than what was asked of it."""


class Listed(NamedTuple):
    """An object of a listing."""

    name: str
    size: int


class Objects:
    """Those below one directory of a store. Every method raises TierError."""

    def __init__(self, store: Any, directory: str, root: Path | None = None) -> None:
        self._store = store
        self._directory = directory
        self._root = root

    @classmethod
    def open(cls, place: StorePlace, cluster: str, broker_name: str) -> Objects:
        """Those of a broker group. Raises SettingsError."""
        store, root = open_store(place)
        return cls(store, group_directory("", cluster, broker_name), root)

    def get(self, name: str, start: int, length: int) -> bytes:
        """Exactly that many bytes from `start` on."""
        import obstore

        try:
            found = bytes(obstore.get_range(self._store, self._path(name), start=start, length=length))
        except Exception as error:
            raise _translated(error, f"read {name}") from error
        if len(found) != length:
            raise NotThere(f"{name} has {len(found)} of the {length} bytes from {start} on")
        return found

    def get_all(self, name: str) -> bytes:
        """The whole object."""
        import obstore

        try:
            found = obstore.get(self._store, self._path(name))
            if found.meta["size"] <= _WHOLE_BYTES:
                return bytes(found.bytes())
        except Exception as error:
            raise _translated(error, f"read {name}") from error
        raise TierError(f"{name} has {found.meta['size']} bytes, and at most {_WHOLE_BYTES} are read")

    def size(self, name: str) -> int:
        """Its length in bytes."""
        import obstore

        try:
            return int(obstore.head(self._store, self._path(name))["size"])
        except Exception as error:
            raise _translated(error, f"read {name}") from error

    def put(self, name: str, content: bytes) -> bool:
        """Store it as a whole or not at all, and replace nothing; False when the name is taken."""
        if self._root is not None:
            try:
                return _put_file(self._root, self._root / self._path(name), content)
            except OSError as error:
                raise _translated(error, f"store {name}") from error
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotSupportedError

        try:
            obstore.put(self._store, self._path(name), content, mode="create", use_multipart=False)
        except AlreadyExistsError:
            return False
        except NotSupportedError:
            return self._put_unguarded(name, content)
        except Exception as error:
            raise _translated(error, f"store {name}") from error
        return True

    def _put_unguarded(self, name: str, content: bytes) -> bool:
        """For a store that cannot refuse to replace."""
        import obstore

        try:
            obstore.put(self._store, self._path(name), content, use_multipart=False)
        except Exception as error:
            raise _translated(error, f"store {name}") from error
        return True

    def list(self, directory: str) -> Iterator[Listed]:
        """All objects below a directory, in no order."""
        import obstore

        below = f"{self._directory}/"
        try:
            for chunk in obstore.list(self._store, below + directory):
                for each in chunk:
                    yield Listed(each["path"].removeprefix(below), each["size"])
        except Exception as error:
            raise _translated(error, f"list {directory}") from error

    def remove(self, names: Sequence[str]) -> None:
        """What is not there counts as removed."""
        import obstore

        for name in names:
            try:
                obstore.delete(self._store, self._path(name))
            except FileNotFoundError:
                continue
            except Exception as error:
                raise _translated(error, f"remove {name}") from error

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"


def _put_file(root: Path, path: Path, content: bytes) -> bool:
    """In a directory: the name is given to what is on the disk, also when the machine fails."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}#{secrets.token_hex(4)}")
    try:
        with open(draft, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    except FileExistsError:
        return False
    finally:
        draft.unlink(missing_ok=True)
    for directory in path.parents:
        sync_path(directory)
        if directory == root:
            break
    return True


def _translated(error: Exception, what: str) -> TierError:
    reason, advice = reason_of(error), advice_of(error)
    if advice is not None:
        return TierError(f"the object store did not {what}: {advice} ({reason})")
    if isinstance(error, FileNotFoundError) or is_too_short(error):
        return NotThere(f"the object store does not have it: could not {what}: {reason}")
    return TierError(f"the object store did not {what}: {reason}")
