"""The words that brokers, controllers and the console have for the same things, each set of them once (pure)

A word of a newer version is taken for the most careful one of its set, where there is such a one; a document with another
unknown word is refused.
"""

from __future__ import annotations

from enum import StrEnum


class BrokerRole(StrEnum):
    """What a broker says that it is in its group."""

    FENCED = "fenced"
    PROMOTING = "promoting"
    MASTER = "master"
    REPLICA = "replica"

    @classmethod
    def _missing_(cls, value: object) -> BrokerRole | None:
        return cls.FENCED if isinstance(value, str) else None
