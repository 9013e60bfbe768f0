"""Spark's errors -> one sentence for the person who reads the report's page (pure)

Spark wraps what went wrong in Python or in the JVM into pages of stack traces, each layer with the names of its classes. What a
person needs is the innermost sentence: that of our own exception if there is one, what a known trouble means, otherwise Spark's
message without traces and classes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MOST_CHARACTERS = 1000

_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*: (?P<text>.+)$", re.MULTILINE)
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
_CANCELLED = ("OPERATION_CANCELED", "OPERATION_CANCELLED", "OPERATION_ABANDONED")
_JAVA_CLASS = r"(?:[a-z_]\w*\.)+[A-Z][\w$]*"
# a layer's class before its message, in brackets or before a colon
_LAYER = re.compile(rf"^(?:\({_JAVA_CLASS}\)\s*|{_JAVA_CLASS}:\s*|Caused by:\s*)+")
_CLASS_ALONE = re.compile(rf"^\(?({_JAVA_CLASS})\)?:?$")
_TASK_LAYER = re.compile(r"most recent failure: Lost task [^:]*?\(TID \d+\) \([^)]*\): ")
_RPC_DETAILS = re.compile(r'details = "(?P<text>[^"]+)"')

_KNOWN: Final = (
    (
        ("OutOfMemoryError", "Java heap space", "GC overhead limit"),
        "Spark ran out of memory. Give it more with LOGBOOM_SPARK_DRIVER_MEMORY, or choose fewer topics or a shorter time range.",
    ),
    (
        ("Python worker exited unexpectedly", "failed to connect back", "Python worker was killed"),
        "Spark's Python worker ended in the middle of its work, again and again: it was killed, or ran out of memory. "
        "Run the report again.",
    ),
    (
        ("No space left on device", "There is not enough space on the disk"),
        "The disk of Spark's working files is full. Free some space in the data directory and run the report again.",
    ),
    (
        ("SESSION_CLOSED", "SESSION_NOT_FOUND", "SESSION_CHANGED", "INVALID_HANDLE"),
        "Spark was started anew while the report ran. Run it again.",
    ),
    (
        (
            "StatusCode.UNAVAILABLE",
            "failed to connect to all addresses",
            "Connection refused",
            "Socket closed",
            "Broken pipe",
        ),
        "Spark does not answer any more: it ended or was killed while the report ran. Run it again; Spark starts by itself.",
    ),
    (
        ("StatusCode.DEADLINE_EXCEEDED", "Deadline Exceeded"),
        "Spark did not answer in time. Run the report again when the machine has less to do.",
    ),
    (
        ("StatusCode.UNAUTHENTICATED", "StatusCode.PERMISSION_DENIED"),
        "Spark refused the report's token: another Spark answers at its address. Run the report again.",
    ),
    (
        ("StatusCode.RESOURCE_EXHAUSTED", "larger than max"),
        "A result was too large for one answer of Spark. Choose fewer topics or a shorter time range.",
    ),
)


def is_cancelled(error: BaseException) -> bool:
    """Whether Spark says that the job was interrupted."""
    text = str(error)
    return any(word in text for word in _CANCELLED)


def is_worker_lost(error: BaseException) -> bool:
    """Whether a Python worker of Spark's vanished, which says nothing against doing the same again."""
    text = str(error)
    return _own_sentence(text) is None and any(word in text for word in _KNOWN[1][0])


def reason(error: BaseException) -> str:
    """Why it failed, in one sentence."""
    whole = str(error)
    return _cut(_own_sentence(whole) or _known(whole) or _innermost(whole.splitlines()) or _unknown(error))


def _own_sentence(text: str) -> str | None:
    """What our code or Python said in Spark's Python worker."""
    _, found, traceback = text.partition("JVM stacktrace:")[0].rpartition("Traceback (most recent call last):")
    sentences = [match["text"] for match in _PYTHON_ERROR.finditer(traceback)] if found else []
    return sentences[-1] if sentences else None


def _known(text: str) -> str | None:
    return next((sentence for words, sentence in _KNOWN if any(word in text for word in words)), None)


def _innermost(lines: Iterable[str]) -> str | None:
    """The first line that says something, without the layers around it."""
    for line in lines:
        said = _TASK_LAYER.split(line.strip())[-1]
        said = _LAYER.sub("", said).strip()
        if said.startswith(("<_", "at ", "JVM stacktrace", "Driver stacktrace", "status = ")):
            continue
        if rpc := _RPC_DETAILS.search(said):
            said = _LAYER.sub("", rpc["text"])
        if said and not _CLASS_ALONE.match(said):
            return said
    return None


def _unknown(error: BaseException) -> str:
    inside = _CLASS_ALONE.match(str(error).strip().partition("\n")[0])
    name = (inside[1] if inside else type(error).__name__).rpartition(".")[2]
    return f"Spark failed and did not say why ({name}); the log of the process `spark` may tell more."


def _cut(sentence: str) -> str:
    sentence = _SQLSTATE.sub("", sentence).strip()
    return sentence if len(sentence) <= MOST_CHARACTERS else sentence[: MOST_CHARACTERS - 1] + "…"
