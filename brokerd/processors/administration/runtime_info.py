"""GET_BROKER_RUNTIME_INFO (28): a broker's figures as texts, under the names that the original's tools look for.

Rates are means over the last 10, 60 and 600 seconds, as far as this process remembers; days are the local ones. What this broker
does not have (thread pools with queues, a page-cache lock) is zero, because the tools fail over a missing number. In place of a
queue of sends there are those that wait to be acknowledged.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import orjson

from brokerd.sending.counters import Counters
from remoting import codes
from remoting.disk import DiskUsage
from remoting.frame import Command
from remoting.transport.connection import RemotingConnection

SAMPLE_S: Final = 10
_WINDOWS_S: Final = (10, 60, 600)
_VERSION_TEXT: Final = "V5_3_3"
_POOLS: Final = ("send", "pull", "litePull", "query", "ack")
_NOT_HERE: Final = (
    *(f"{name}ThreadPoolQueue{what}" for name in _POOLS for what in ("Size", "HeadWaitTimeMills", "Capacity")),
    *("EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity"),
    *("pageCacheLockTimeMills", "dispatchMaxBuffer", "remainHowManyDataToCommit", "startAcceptSendRequestTimeStamp"),
    *("timerReadBehind", "timerOffsetBehind", "timerCongestNum"),
    *("timerEnqueueTps", "timerDequeueTps", "remainTransientStoreBufferNumbs"),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """What the broker is and has at one moment. `earliest_ms` is the store time of its oldest message, -1 without one.

    `failed_puts` are sends that were refused or not acknowledged in time; `missed_gets` pulls and pops that found nothing.
    `waiting_sends` groups of messages wait to be acknowledged, the first of them for `oldest_wait_ms`.
    `delayed` has for each delay level how many of its messages were delivered, and how many there were ever.
    """

    in_messages: int
    out_messages: int
    in_bytes: int
    min_offset: int
    end_offset: int
    flushed_offset: int
    dispatched_offset: int
    earliest_ms: int
    is_active: bool
    disk: DiskUsage
    failed_puts: int = 0
    missed_gets: int = 0
    waiting_sends: int = 0
    oldest_wait_ms: int = 0
    delayed: Mapping[int, tuple[int, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    in_messages: int
    out_messages: int
    missed_gets: int


class RuntimeInfo:
    """The handler. `sample` is to be called every `SAMPLE_S` seconds."""

    def __init__(
        self,
        figures: Callable[[], Figures],
        counters: Counters,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._figures = figures
        self._counters = counters
        self._monotonic_s = monotonic_s
        self._wall_s = wall_s
        self._started_s = wall_s()
        self._samples: deque[_Sample] = deque([_Sample(monotonic_s(), 0, 0, 0)], maxlen=_WINDOWS_S[-1] // SAMPLE_S + 1)
        self._day = self._today()
        self._mornings = ((0, 0), (0, 0))  # (messages in, out) at the begin of yesterday and of today

    def sample(self) -> None:
        """Remember the totals of this moment."""
        figures = self._figures()
        now_s = self._monotonic_s()
        self._samples.append(_Sample(now_s, figures.in_messages, figures.out_messages, figures.missed_gets))
        self._counters.statistics.sample(now_s)
        self._counters.puts.begin_window()
        if self._today() != self._day:
            self._day = self._today()
            self._mornings = (self._mornings[1], (figures.in_messages, figures.out_messages))

    def handle(self, connection: RemotingConnection, request: Command) -> None:
        connection.respond(request, body=orjson.dumps({"table": self.table()}))

    def table(self) -> dict[str, str]:
        """All figures by name."""
        now = self._figures()
        (yesterday_in, yesterday_out), (today_in, today_out) = self._mornings
        found = self._rates(now.out_messages, "out_messages")
        missed = self._rates(now.missed_gets, "missed_gets")
        puts, reads = self._counters.puts, self._counters.reads
        up_s = int(self._wall_s() - self._started_s)
        minutes, seconds = divmod(up_s, 60)
        hours, minutes = divmod(minutes, 60)
        used = 1 - now.disk.free_bytes / now.disk.total_bytes if now.disk.total_bytes else 0.0
        table: dict[str, object] = dict.fromkeys(_NOT_HERE, 0) | {
            "brokerVersionDesc": _VERSION_TEXT,
            "brokerVersion": codes.VERSION,
            "brokerActive": str(now.is_active).lower(),
            "bootTimestamp": int(self._started_s * 1000),
            "runtime": f"[ {hours // 24} days, {hours % 24} hours, {minutes} minutes, {seconds} seconds ]",
            "putTps": _text(self._rates(now.in_messages, "in_messages")),
            "getTransferredTps": _text(found),
            "getFoundTps": _text(found),
            "getMissTps": _text(missed),
            "getTotalTps": _text([sum(each) for each in zip(found, missed, strict=True)]),
            "getMessageEntireTimeMax": int(reads.longest_ms),
            "msgPutTotalYesterdayMorning": yesterday_in,
            "msgPutTotalTodayMorning": today_in,
            "msgPutTotalTodayNow": now.in_messages,
            "msgGetTotalYesterdayMorning": yesterday_out,
            "msgGetTotalTodayMorning": today_out,
            "msgGetTotalTodayNow": now.out_messages,
            "putMessageTimesTotal": now.in_messages,
            "putMessageFailedTimes": now.failed_puts,
            "putMessageEntireTimeMax": int(puts.longest_ms),
            "putMessageDistributeTime": puts.distribution(),
            "putLatency99": f"{puts.quantile_ms(0.99):.2f}",
            "putLatency999": f"{puts.quantile_ms(0.999):.2f}",
            "sendThreadPoolQueueSize": now.waiting_sends,
            "sendThreadPoolQueueHeadWaitTimeMills": now.oldest_wait_ms,
            "putMessageSizeTotal": now.in_bytes,
            "putMessageAverageSize": f"{now.in_bytes / now.in_messages if now.in_messages else 0:.1f}",
            "commitLogMinOffset": now.min_offset,
            "commitLogMaxOffset": now.end_offset,
            "dispatchBehindBytes": max(0, now.end_offset - now.dispatched_offset),
            "remainHowManyDataToFlush": f"{now.end_offset - now.flushed_offset} B",
            "earliestMessageTimeStamp": now.earliest_ms,
            "commitLogDiskRatio": f"{used:.4f}",
            "consumeQueueDiskRatio": f"{used:.4f}",
            "commitLogDirCapacity": f"Total : {now.disk.total_bytes} B, Free : {now.disk.free_bytes} B.",
        }
        table |= {f"scheduleMessageOffset_{level}": f"{done},{end}" for level, (done, end) in now.delayed.items()}
        return {name: str(value) for name, value in sorted(table.items())}

    def _rates(self, total: int, name: str) -> list[float]:
        now_s, rates = self._monotonic_s(), []
        for window_s in _WINDOWS_S:
            since = next(
                (each for each in self._samples if now_s - each.at_s <= window_s + SAMPLE_S / 2), self._samples[-1]
            )
            elapsed_s = now_s - since.at_s
            rates.append((total - getattr(since, name)) / elapsed_s if elapsed_s > 0 else 0.0)
        return rates

    def _today(self) -> tuple[int, int]:
        local = time.localtime(self._wall_s())
        return local.tm_year, local.tm_yday


def _text(rates: Sequence[float]) -> str:
    return " ".join(f"{rate:.2f}" for rate in rates)
