"""Spark's errors -> one sentence for the person who reads the report's page (pure)

Spark wraps what went wrong in Python or in the JVM into pages of stack traces. What a person needs is the innermost sentence:
that of our own exception if there is one, otherwise Spark's message without its traces.
"""

from __future__ import annotations

import re

MOST_CHARACTERS = 1000

_PYTHON_ERROR = re.compile(r"^[A-Za-z_][\w.]*: (?P<text>.+)$", re.MULTILINE)
_SQLSTATE = re.compile(r"\s*SQLSTATE: \w+\s*$")
_CANCELLED = ("OPERATION_CANCELED", "OPERATION_CANCELLED", "OPERATION_ABANDONED")


def is_cancelled(error: BaseException) -> bool:
    """Whether Spark says that the job was interrupted."""
    text = str(error)
    return any(word in text for word in _CANCELLED)


def reason(error: BaseException) -> str:
    """Why it failed, in one sentence."""
    text = str(error).partition("JVM stacktrace:")[0]
    _, found, traceback = text.rpartition("Traceback (most recent call last):")
    if found:
        sentences = [match["text"] for match in _PYTHON_ERROR.finditer(traceback)]
        if sentences:
            return _cut(sentences[-1])
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return _cut(re.sub(r"^\([\w.$]+\)\s*", "", lines[0]))


def _cut(sentence: str) -> str:
    sentence = _SQLSTATE.sub("", sentence).strip()
    return sentence if len(sentence) <= MOST_CHARACTERS else sentence[: MOST_CHARACTERS - 1] + "…"
