"""A broker's figures under the original's names: rates over windows, days, and that every number a tool parses is one."""

from __future__ import annotations

import calendar
import time
from dataclasses import replace

import pytest

from brokerd.processors.administration.runtime_info import Figures, RuntimeInfo
from brokerd.sending.counters import Counters
from remoting.disk import DiskUsage

# What clusterList parses as a number, by the original's documentation of the request.
LONGS = (
    *(f"msg{what}Total{when}" for what in ("Put", "Get") for when in ("YesterdayMorning", "TodayMorning", "TodayNow")),
    *(f"{pool}ThreadPoolQueue{what}" for pool in ("send", "pull", "ack") for what in ("Size", "HeadWaitTimeMills")),
    *("pageCacheLockTimeMills", "earliestMessageTimeStamp", "timerReadBehind", "timerOffsetBehind", "timerCongestNum"),
)
DOUBLES = ("commitLogDiskRatio", "timerEnqueueTps", "timerDequeueTps")


class Broker:
    """Figures and clocks that a test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wall_s = float(calendar.timegm((2026, 3, 1, 12, 0, 0)))
        self.figures = Figures(0, 0, 0, 0, 0, 0, 0, -1, True, DiskUsage(1000, 250))
        self.counters = Counters()
        self.info = RuntimeInfo(lambda: self.figures, self.counters, lambda: self.now_s, lambda: self.wall_s)

    def run(self, seconds: int, *, sent: int = 0, given: int = 0) -> None:
        """Let time pass with so many messages each second, and a sample every ten."""
        for _ in range(seconds):
            self.now_s += 1
            self.wall_s += 1
            figures = self.figures
            self.figures = replace(
                figures,
                in_messages=figures.in_messages + sent,
                out_messages=figures.out_messages + given,
                in_bytes=figures.in_bytes + 10 * sent,
            )
            if self.now_s % 10 == 0:
                self.info.sample()

    def rates(self, name: str) -> list[float]:
        return [float(word) for word in self.info.table()[name].split()]


def test_every_figure_is_a_text_and_the_numbers_are_numbers() -> None:
    table = Broker().info.table()
    assert all(isinstance(each, str) for each in table.values())
    assert [int(table[name]) for name in LONGS][:6] == [0] * 6
    assert [float(table[name]) for name in DOUBLES] == [0.75, 0, 0]
    assert table["brokerActive"] == "true"
    assert table["earliestMessageTimeStamp"] == "-1"
    assert table["runtime"] == "[ 0 days, 0 hours, 0 minutes, 0 seconds ]"


def test_rates_over_ten_seconds_a_minute_and_ten() -> None:
    broker = Broker()
    assert broker.rates("putTps") == [0, 0, 0]
    broker.run(600, sent=6)
    assert broker.rates("putTps") == pytest.approx([6, 6, 6])
    broker.run(60, sent=12, given=3)
    assert broker.rates("putTps") == pytest.approx([12, 12, 6.6])
    assert broker.rates("getTransferredTps") == pytest.approx([3, 3, 0.3])
    broker.run(15)
    assert broker.rates("putTps")[0] == pytest.approx(0)
    assert broker.info.table()["putMessageAverageSize"] == "10.0"


def test_days_begin_at_midnight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    broker = Broker()
    broker.run(20, sent=1)
    broker.wall_s += 12 * 3600
    broker.run(10, sent=1)
    table = broker.info.table()
    put = [table[f"msgPutTotal{when}"] for when in ("YesterdayMorning", "TodayMorning", "TodayNow")]
    assert put == ["0", "30", "30"]
    broker.wall_s += 24 * 3600
    broker.run(10, sent=2)
    table = broker.info.table()
    put = [table[f"msgPutTotal{when}"] for when in ("YesterdayMorning", "TodayMorning", "TodayNow")]
    assert put == ["30", "50", "50"]
    assert table["runtime"].startswith("[ 1 days, 12 hours, 0 minutes, 40 seconds")
    monkeypatch.undo()
    time.tzset()


def test_every_key_of_the_original_is_there() -> None:
    pools = ("send", "pull", "litePull", "query", "ack")
    wanted = {
        *LONGS,
        *DOUBLES,
        *(f"{pool}ThreadPoolQueue{what}" for pool in pools for what in ("Size", "HeadWaitTimeMills", "Capacity")),
        *(
            "brokerVersionDesc",
            "brokerVersion",
            "brokerActive",
            "bootTimestamp",
            "runtime",
            "putTps",
            "getTransferredTps",
        ),
        *("getFoundTps", "getMissTps", "getTotalTps", "getMessageEntireTimeMax", "putMessageEntireTimeMax"),
        *("putMessageTimesTotal", "putMessageFailedTimes", "putMessageSizeTotal", "putMessageDistributeTime"),
        *("putMessageAverageSize", "dispatchMaxBuffer", "putLatency99", "putLatency999", "commitLogMinOffset"),
        *("commitLogMaxOffset", "consumeQueueDiskRatio", "commitLogDirCapacity", "dispatchBehindBytes"),
        *("startAcceptSendRequestTimeStamp", "remainTransientStoreBufferNumbs", "remainHowManyDataToFlush"),
        *("remainHowManyDataToCommit", "EndTransactionQueueSize", "EndTransactionThreadPoolQueueCapacity"),
    }
    assert wanted <= Broker().info.table().keys()


def test_latencies_failures_and_who_waits() -> None:
    broker = Broker()
    for milliseconds, times in ((0.4, 900), (7.0, 90), (60.0, 9), (1500.0, 1)):
        broker.counters.puts.add(milliseconds, times)
    broker.counters.reads.add(12)
    figures = replace(broker.figures, failed_puts=3, missed_gets=20, waiting_sends=5, oldest_wait_ms=40)
    broker.figures = replace(figures, delayed={1: (4, 6)})
    table = broker.info.table()
    assert float(table["putLatency99"]) == pytest.approx(8.19, abs=0.01)
    assert 60 <= float(table["putLatency999"]) <= 2 * 60
    assert (table["putMessageEntireTimeMax"], table["getMessageEntireTimeMax"]) == ("1500", "12")
    assert table["putMessageDistributeTime"].startswith("[<=0ms]:900 [0~10ms]:90 [10~50ms]:0 [50~100ms]:9 ")
    assert "[1~2s]:1 " in table["putMessageDistributeTime"]
    assert table["putMessageFailedTimes"] == "3"
    assert table["scheduleMessageOffset_1"] == "4,6"
    assert (table["sendThreadPoolQueueSize"], table["sendThreadPoolQueueHeadWaitTimeMills"]) == ("5", "40")
    broker.run(10)
    assert broker.info.table()["putLatency99"] == "0.00", "of the last seconds, in which there was nothing"
