from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.utils import find_app

from tasks import heartbeat, stopping
from tasks.app import GRACE_S, REPORT_SOFT_LIMIT_S, VISIBILITY_TIMEOUT_S, app
from tasks.beat_scheduler import Scheduler
from tasks.heartbeat_file import beat
from webapp.appliance.environment import HEARTBEAT_FILE


def test_celery_finds_the_app_by_the_packages_name() -> None:
    assert find_app("tasks") is app


def test_only_json_goes_over_the_wire_and_work_is_acknowledged_after_it_is_done() -> None:
    assert app.conf.accept_content == ["json"]
    assert app.conf.task_serializer == "json"
    assert app.conf.task_acks_late is True
    assert app.conf.worker_enable_remote_control is False


def test_a_report_is_not_delivered_again_while_it_may_still_run() -> None:
    assert VISIBILITY_TIMEOUT_S > REPORT_SOFT_LIMIT_S + GRACE_S
    assert app.conf.broker_transport_options["visibility_timeout"] == VISIBILITY_TIMEOUT_S


def test_every_task_has_time_limits_and_reports_a_queue_of_their_own() -> None:
    app.loader.import_default_modules()
    ours = {name: task for name, task in app.tasks.items() if name.startswith("tasks.")}
    assert len(ours) == 8
    for name, task in ours.items():
        assert task.time_limit or app.conf.task_time_limit, name
    routed = {name: app.amqp.router.route({}, name)["queue"].name for name in ours}
    assert {name for name, queue in routed.items() if queue == "reports"} == {"tasks.reports.run"}
    assert set(routed.values()) == {"default", "reports"}


def test_the_heartbeat_is_a_touched_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HEARTBEAT_FILE, raising=False)
    beat()
    monkeypatch.setenv(HEARTBEAT_FILE, str(tmp_path / "x.heartbeat"))
    beat()
    assert (tmp_path / "x.heartbeat").exists()
    monkeypatch.setenv(HEARTBEAT_FILE, str(tmp_path / "nowhere" / "x.heartbeat"))
    beat()


def test_a_worker_beats_from_its_own_loop_as_long_as_it_consumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HEARTBEAT_FILE, str(tmp_path / "worker.heartbeat"))
    entries: list[Any] = []

    def call_repeatedly(every_s: float, call: Any) -> Any:
        entries.append(SimpleNamespace(every_s=every_s, call=call, cancelled=False))
        entries[-1].cancel = lambda entry=entries[-1]: setattr(entry, "cancelled", True)
        return entries[-1]

    parent = SimpleNamespace(timer=SimpleNamespace(call_repeatedly=call_repeatedly))
    step = heartbeat.WorkerHeartbeat(parent)
    step.start(parent)
    assert (tmp_path / "worker.heartbeat").exists()
    assert entries[0].every_s < 10
    assert entries[0].call is beat
    step.stop(parent)
    step.stop(parent)
    assert entries[0].cancelled


def test_beat_beats_with_each_look_at_its_timetable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HEARTBEAT_FILE, str(tmp_path / "beat.heartbeat"))
    monkeypatch.setattr(Scheduler.__mro__[1], "tick", lambda self: 3.0)
    assert Scheduler.tick(Scheduler.__new__(Scheduler)) == 3.0
    assert (tmp_path / "beat.heartbeat").exists()
    assert app.conf.beat_scheduler == "tasks.beat_scheduler:Scheduler"


def test_children_see_that_their_worker_was_told_to_stop() -> None:
    assert not stopping.is_worker_stopping()
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(readable, 1)  # until the parent has written, after the fork
        os._exit(0 if stopping.is_worker_stopping() else 1)
    stopping._stop()
    os.write(writable, b"x")
    _, status = os.waitpid(child, 0)
    stopping._flag[0] = 0
    os.close(readable)
    os.close(writable)
    assert os.waitstatus_to_exitcode(status) == 0
