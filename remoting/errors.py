"""The exception tree of the project; everything raised across a seam is one of these.

    LogboomError
    ├── ProtocolError          the peer sent bytes that no correct peer sends; close the connection
    │   └── DamagedRecord      a record of the log that does not match its checksum
    ├── RequestError           a request was understood and refused; carries the response code
    │   ├── InvalidParameter, FlowControl
    │   ├── NotLeader, NotMaster
    │   └── ...                (any other code)
    ├── ConnectionLost         the outcome of what was in flight is unknown
    ├── RequestTimeout         likewise unknown
    ├── StorageError           the disk refused; the daemon stops writing
    │   └── CorruptedFile
    └── SettingsError          start-up refused; the text says what to set

A caller asks `retriable` instead of listing types.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from remoting import codes


class LogboomError(Exception):
    """Base of all errors that cross a seam. `code` is what a remoting peer is answered with."""

    code: int = codes.SYSTEM_ERROR
    retriable: bool = False


class ProtocolError(LogboomError):
    """The peer broke the protocol (bad length, undecodable header, frame out of order). The connection must be closed."""


class DamagedRange(NamedTuple):
    """Bytes of a commitlog that are not what was stored; `size` is 0 when not even that can be read there."""

    offset: int
    size: int


class DamagedRecord(ProtocolError):
    """The peer sent a record of the log that is not what was stored: its copy is damaged, or the way to us changed it."""

    def __init__(self, damage: DamagedRange) -> None:
        super().__init__(f"the record of {damage.size} bytes at offset {damage.offset} does not match its checksum")
        self.damage = damage


class RequestError(LogboomError):
    """A request was refused with a response code; raised by clients on such an answer and by handlers to give one."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.retriable = code in codes.RETRIABLE

    @property
    def message(self) -> str:
        """The sentence for a person: what was wrong and what to do."""
        return str(self.args[0])


class InvalidParameter(RequestError):
    """A field is missing or out of bounds; the message names the field and the rule."""

    def __init__(self, message: str) -> None:
        super().__init__(codes.INVALID_PARAMETER, message)


class FlowControl(RequestError):
    """There is too much of something, and will be when the same is asked for again: clients do not try that by themselves."""

    def __init__(self, message: str) -> None:
        super().__init__(codes.FLOW_CONTROL, message)


class NotLeader(RequestError):
    """This controller does not lead (or has not yet applied an entry of its own term)."""

    def __init__(
        self, message: str = "this controller is not the leader; ask the one named by GET_METADATA_INFO"
    ) -> None:
        super().__init__(codes.CONTROLLER_NOT_LEADER, message)


class NotMaster(RequestError):
    """This broker does not serve writes: it is a replica, or fenced until a controller confirmed its role."""

    def __init__(self, message: str = "this broker is not the master of its group; refresh the route") -> None:
        super().__init__(codes.SERVICE_NOT_AVAILABLE, message)


def as_request_error(error: LogboomError, code: int | None = None) -> RequestError:
    """The error as the answer to a request: a value that is kept or handed on. `code` is for errors that are no answer yet.

    It has no traceback: that would hold the frames that the error went through, and with them the request, what was read together
    with it, and often whatever holds the answer, which only the collector could free then.
    """
    if isinstance(error, RequestError):
        return error.with_traceback(None)
    return RequestError(error.code if code is None else code, str(error))


def raise_refusal(refusal: RequestError | None) -> None:
    """Raise it, if there is one, and leave no frame behind that holds it."""
    try:
        if refusal is not None:
            raise refusal
    finally:
        del refusal


class ConnectionLost(LogboomError):
    """The connection went away; the outcome of every request in flight on it is unknown."""

    retriable = True


class RequestTimeout(LogboomError):
    """No answer within the deadline; the outcome is unknown."""

    retriable = True


class StorageError(LogboomError):
    """The disk refused an operation. The store stops writing at once: a failed sync is never retried."""

    @property
    def is_out_of_space(self) -> bool:
        """Whether the disk was only full, which passes, unlike every other refusal."""
        cause = self.__cause__
        return isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT)


class CorruptedFile(StorageError):
    """A file's content contradicts its checksum or layout; the message names the file and the position.

    `damage` is what of the commitlog is damaged: the rest of the log, and the disk, may be well, and another replica may have it
    intact. None when it is another file, or nobody can say.
    """

    def __init__(self, message: str, damage: DamagedRange | None = None) -> None:
        super().__init__(message)
        self.damage = damage


class SettingsError(LogboomError):
    """A setting or the machine makes starting impossible; the message is the one sentence that says what to do."""
