"""Schedules with real processes: beat and workers are killed at any moment, and each tick has exactly one run."""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.cluster import eventually
from tests.support.leash import leashed
from tests.support.redis import embedded
from tests.support.scheduling import SCHEDULES

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
KILLS = 20
SEED = 15
MINUTE = timedelta(minutes=1)


class Stage:
    """Redis, the program that starts and kills, and the test itself in the place of the worker that runs reports."""

    def __init__(self, directory: Path) -> None:
        redis_server = embedded(directory)
        self.database = directory / "console.sqlite3"
        self.deliveries: Counter[str] = Counter()
        self.executions: Counter[str] = Counter()
        self._redis_server = subprocess.Popen(leashed(redis_server.argv), stdout=subprocess.DEVNULL)
        self._redis = redis.Redis.from_url(redis_server.url)
        self._program = subprocess.Popen(
            leashed([sys.executable, "-m", "tests.support.scheduling"]),
            cwd=ROOT,
            env={**os.environ, "LOGBOOM_DATA_DIR": str(directory), "REDIS_URL": redis_server.url},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def start(self) -> None:
        assert self._answer() == "ready"
        eventually("Redis answers", self._answers)

    def _answers(self) -> bool:
        try:
            return bool(self._redis.ping())
        except redis.ConnectionError:
            return False

    def _answer(self) -> str:
        assert self._program.stdout is not None
        return self._program.stdout.readline().strip()

    def tell(self, command: str) -> str:
        assert self._program.stdin is not None
        self._program.stdin.write(f"{command}\n")
        self._program.stdin.flush()
        return self._answer()

    def close(self) -> None:
        for process in (self._program, self._redis_server):
            process.kill()
            process.wait(10)
        for pipe in (self._program.stdin, self._program.stdout):
            assert pipe is not None
            pipe.close()
        self._redis.close()

    def query(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.database, timeout=20) as connection:
            connection.execute("PRAGMA synchronous=OFF")
            rows = connection.execute(sql, values).fetchall()
        connection.close()
        return rows

    def run_reports(self, seconds: float) -> None:
        """Take runs from their queue for a while; as the worker does, each is taken by its row and no more than once."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            taken = self._redis.brpop("reports", timeout=left)
            if taken is None:
                return
            run_id = uuid.UUID(json.loads(base64.b64decode(json.loads(taken[1])["body"]))[0][0]).hex
            self.deliveries[run_id] += 1
            done = "UPDATE reports_reportrun SET state = 'succeeded' WHERE id = ? AND state = 'queued' RETURNING id"
            self.executions[run_id] += len(self.query(done, run_id))

    def rows(self, schedule: str) -> list[tuple[str, datetime, str, str]]:
        found = self.query(
            "SELECT run.id, run.tick, run.state, run.reason FROM reports_reportrun run"
            " JOIN reports_reportschedule schedule ON schedule.id = run.schedule_id"
            " WHERE schedule.name = ? ORDER BY run.tick, run.id",
            schedule,
        )
        return [(run_id, datetime.fromisoformat(tick), state, reason) for run_id, tick, state, reason in found]

    def last_ticks(self) -> dict[str, datetime]:
        """Of each schedule that has made a run."""
        return {name: rows[-1][1] for name, _, _ in SCHEDULES if (rows := self.rows(name))}

    def went_on(self, since: dict[str, datetime]) -> bool:
        """Run reports for a moment; true when each schedule has made rows since."""
        self.run_reports(0.02)
        last = self.last_ticks()
        return all(name in last and last[name] > since.get(name, last[name] - MINUTE) for name, _, _ in SCHEDULES)


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path)
    try:
        stage.start()
        yield stage
    finally:
        stage.close()


def test_each_tick_has_exactly_one_run_whoever_is_killed(stage: Stage) -> None:
    chance = random.Random(SEED)
    workers = ("worker-1", "worker-2")  # two that look at once
    killed: Counter[str] = Counter()

    def kill_and_start(name: str) -> None:
        assert stage.tell(f"kill {name}") == str(int(signal.SIGKILL)), f"{name} had ended by itself"
        killed[name] += 1
        stage.tell(f"start {name}")

    for name in ("beat", *workers):
        stage.tell(f"start {name}")
    last = stage.last_ticks()
    for number in range(KILLS):
        if number % 2:  # a beat that died young, then one whose calls were heard
            eventually("ticks are decided", partial(stage.went_on, last))
        stage.run_reports(chance.uniform(0, 0.2))
        last = stage.last_ticks()
        kill_and_start("beat")
        if chance.random() < 0.4:
            stage.run_reports(chance.uniform(0, 0.1))
            kill_and_start(chance.choice(workers))
    assert killed["beat"] == KILLS
    assert killed["worker-1"] + killed["worker-2"] >= 5

    last = stage.last_ticks()
    waiting = "SELECT id FROM reports_reportrun WHERE state = 'queued' AND tick <= ?"

    def is_calm() -> bool:
        stage.run_reports(0.2)
        return stage.went_on(last) and not stage.query(waiting, max(last.values()).isoformat(sep=" "))

    eventually("all schedules go on, and what was made before was run", is_calm)
    for name in ("beat", *workers):
        stage.tell(f"kill {name}")
    for name, _, _ in SCHEDULES:
        rows = stage.rows(name)
        ticks = [tick for _, tick, _, _ in rows]
        assert ticks == [ticks[0] + MINUTE * number for number in range(len(ticks))], name
        for run_id, tick, state, reason in rows:
            if state == "skipped":
                assert reason, (name, tick)
                assert run_id not in stage.deliveries, (name, tick)
            elif tick <= last[name]:
                assert (state, stage.executions[run_id]) == ("succeeded", 1), (name, tick)
        assert sum(state == "succeeded" for _, _, state, _ in rows) >= 3, name
