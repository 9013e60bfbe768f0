"""What one peer may cost us: sizes, counts and rates of an HTTP/2 connection (pure).

Peers are untrusted. Every length is checked before it is allocated, every kind of frame that costs us work without being a
request has a rate, and bodies that have not ended are counted in the daemon's budget (`remoting/transport/unfinished.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Http2Limits:
    """The bounds of a connection; sizes in bytes, rates per second with the burst they may come in."""

    max_frame_bytes: int = 16384
    max_concurrent_streams: int = 10000
    stream_window_bytes: int = _MIB
    connection_window_bytes: int = 16 * _MIB
    max_header_block_bytes: int = 32 * 1024
    max_header_list_bytes: int = 32 * 1024
    max_continuations: int = 32
    # answers that wait for the peer's flow-control windows, per connection
    max_blocked_bytes: int = 512 * _MIB
    ping_rate: int = 500
    ping_burst: int = 1000
    settings_rate: int = 10
    settings_burst: int = 100
    # resets by the peer, and resets that the peer's faults make us send
    reset_rate: int = 200
    # frames that mean nothing: empty data, priorities, unknown types
    idle_frame_rate: int = 1000
    idle_frame_burst: int = 10000


@dataclass(slots=True)
class Allowance:
    """A rate with a burst: `take` answers whether one more is within it."""

    rate: int
    burst: int
    left: float = field(init=False)
    since_ms: int = 0

    def __post_init__(self) -> None:
        self.left = self.burst

    def take(self, now_ms: int) -> bool:
        self.left = min(self.burst, self.left + (now_ms - self.since_ms) * self.rate / 1000)
        self.since_ms = now_ms
        if self.left < 1:
            return False
        self.left -= 1
        return True
