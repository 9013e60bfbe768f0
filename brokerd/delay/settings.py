"""Settings of the delivery of delayed messages (`--set delay.key=value`). The levels are `store.delay_levels`."""

from __future__ import annotations

from dataclasses import dataclass

from remoting.settings import check, setting


@dataclass(frozen=True, slots=True)
class DelaySettings:
    """How much is delivered at once, and when a failure is tried again."""

    batch_messages: int = setting(
        64, "most delayed messages delivered before the last are acknowledged", minimum=1, maximum=100_000
    )
    batch_bytes: int = setting(4 << 20, "most bytes of them, but always one message", minimum=1024, maximum=64 << 20)
    retry_ms: int = setting(
        1000, "when a delivery fails, the next try is after this time", minimum=10, maximum=3_600_000
    )

    def __post_init__(self) -> None:
        check("delay", self)
