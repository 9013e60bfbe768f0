"""Facts as the documents that a peer reads, for tests that look at keys."""

from __future__ import annotations

from typing import Any

import orjson

from remoting.facts.codec import encode


def document(fact: object) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(encode(fact))
    return found
