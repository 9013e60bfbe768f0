"""Reports: parameters, runs, rows streamed and kept, downloads."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from django.test import Client

from remoting.errors import ConnectionLost
from tests.web.fakes import FakeCluster, MemorySnapshots, RecordingQueue, snapshot_document
from webapp.lifecycle import State, WorkOver
from webapp.operations.models import Operation
from webapp.reports import catalogue, results, stream
from webapp.reports.catalogue import Row
from webapp.reports.models import ReportRun, ReportSchedule

DAILY = {"name": "daily", "report": "throughput", "cron": "0 6 * * 1-5", "time_zone": "Europe/Berlin"}


@pytest.fixture
def run(db: None) -> ReportRun:
    return ReportRun.objects.create(report="throughput", parameters={})


def minute(number: int, messages: int | None = 1, topic: str = "orders") -> Row:
    at = f"2026-01-01T00:{number:02}:00Z"
    data = {"topic": topic, "group": "broker-a", "queue_id": 0, "minute": at, "messages": messages, "bytes": 10}
    return Row("throughput", f"{topic}|{number}", data)


# ---- running


def test_a_run_is_made_and_sent_to_spark(operator: Client, django_capture_on_commit_callbacks: Any) -> None:
    body = {"report": "throughput", "parameters": {"minutes": 5, "topics": ["orders"]}}
    with django_capture_on_commit_callbacks(execute=True):
        document = operator.post("/api/v1/report-runs", body, content_type="application/json").json()
    run = ReportRun.objects.get()
    assert document["result"] == {"run_id": str(run.pk)}
    assert run.parameters == {"topics": ["orders"], "minutes": 5, "start": None, "end": None, "top_keys": 20}
    assert RecordingQueue.sent == [("tasks.reports.run", (str(run.pk),))]


def test_a_run_that_cannot_be_queued_fails_with_the_reason(
    operator: Client, django_capture_on_commit_callbacks: Any
) -> None:
    RecordingQueue.broken = True
    with django_capture_on_commit_callbacks(execute=True):
        operator.post("/reports/throughput/run", {})
    run = ReportRun.objects.get()
    assert run.state == State.FAILED
    assert "task queue" in run.reason


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"minutes": 0}, "parameters.minutes"),
        ({"minutes": "soon"}, "parameters.minutes"),
        ({"topics": ["a b"]}, "parameters.topics"),
        ({"topics": "x" * 200}, "parameters.topics"),
        ({"topics": [1]}, "parameters.topics"),
        ({"start": "yesterday"}, "parameters.start"),
        ({"start": "2026-01-01T00:00:00"}, "parameters.start"),
        ({"start": "2026-01-02T00:00:00Z", "end": "2026-01-01T00:00:00Z"}, "parameters.end"),
        ({"start": "0001-01-01T00:00:00+14:00"}, "parameters.start"),
        ({"start": "1969-12-31T23:59:59Z"}, "parameters.start"),
        ({"end": "9999-12-31T23:59:59-14:00"}, "parameters.end"),
        ({"command": "rm"}, "parameters"),
    ],
)
def test_bad_parameters_are_refused_with_the_rule(operator: Client, parameters: dict[str, Any], field: str) -> None:
    body = {"report": "throughput", "parameters": parameters}
    response = operator.post("/api/v1/report-runs", body, content_type="application/json")
    assert response.status_code == 400
    assert field in response.json()["errors"]
    assert not ReportRun.objects.exists()


UNKNOWN = "a" * 89 + "z"


def test_an_unknown_topic_is_refused_at_once(operator: Client) -> None:
    body = {"report": "throughput", "parameters": {"topics": ["orders", UNKNOWN]}}
    response = operator.post("/api/v1/report-runs", body, content_type="application/json")
    assert response.status_code == 400
    assert response.json()["errors"] == {"parameters.topics": [f"the cluster has no topic {UNKNOWN}"]}
    page = operator.post("/reports/throughput/run", {"p_topics": [UNKNOWN]})
    assert f"the cluster has no topic {UNKNOWN}" in page.content.decode()
    schedule = {**DAILY, "parameters": {"topics": [UNKNOWN]}}
    refused = operator.post("/api/v1/report-schedules", schedule, content_type="application/json")
    assert "parameters.topics" in refused.json()["errors"]
    assert not ReportRun.objects.exists()
    assert not ReportSchedule.objects.exists()


@pytest.mark.parametrize(
    "master",
    [
        {"alive": False, "role": "unreachable", "flushed_offset": None},
        {"flushed_offset": None},  # the controllers hear of it, the console does not
        {"role": "replica"},
        {"id": 7},
    ],
)
def test_while_a_master_is_silent_no_topic_is_called_unknown(operator: Client, master: dict[str, Any]) -> None:
    document = snapshot_document()
    document["groups"][0]["replicas"][0] |= master
    MemorySnapshots.put(document)
    body = {"report": "throughput", "parameters": {"topics": [UNKNOWN]}}
    assert operator.post("/api/v1/report-runs", body, content_type="application/json").status_code == 200


def test_a_topic_made_a_moment_ago_is_known(operator: Client) -> None:
    FakeCluster.add_topic(UNKNOWN)
    body = {"report": "throughput", "parameters": {"topics": [UNKNOWN]}}
    assert operator.post("/api/v1/report-runs", body, content_type="application/json").status_code == 200
    FakeCluster.clear()
    FakeCluster.error = ConnectionLost("no controller answers")
    assert operator.post("/api/v1/report-runs", body, content_type="application/json").status_code == 200


def test_without_a_snapshot_no_topic_is_called_unknown(operator: Client) -> None:
    MemorySnapshots.put(None)
    body = {"report": "throughput", "parameters": {"topics": [UNKNOWN]}}
    assert operator.post("/api/v1/report-runs", body, content_type="application/json").status_code == 200


def test_a_schedule_whose_topic_is_gone_can_be_disabled_but_not_run_by_hand(operator: Client) -> None:
    schedule = ReportSchedule.objects.create(
        name="old", report="throughput", parameters={"topics": [UNKNOWN]}, cron="0 6 * * *"
    )
    address = f"/api/v1/report-schedules/{schedule.pk}"
    refused = operator.post("/api/v1/report-runs", {"schedule_id": schedule.pk}, content_type="application/json")
    assert "parameters.topics" in refused.json()["errors"]
    assert operator.patch(address, {"enabled": False}, content_type="application/json").status_code == 200
    more = {"parameters": {"topics": [UNKNOWN, "b" * 90]}}
    errors = operator.patch(address, more, content_type="application/json").json()["errors"]
    assert errors == {"parameters.topics": ["the cluster has no topic " + "b" * 90]}


def test_an_unknown_report_is_not_found(operator: Client) -> None:
    response = operator.post("/api/v1/report-runs", {"report": "nope"}, content_type="application/json")
    assert (response.status_code, response.json()["code"]) == (404, "report-not-found")
    assert "throughput" in response.json()["detail"]


def test_cancelling_before_it_started_ends_it(operator: Client, run: ReportRun) -> None:
    operator.post(f"/api/v1/report-runs/{run.pk}/cancel")
    run.refresh_from_db()
    assert (run.state, RecordingQueue.sent) == (State.CANCELLED, [])
    again = operator.post(f"/api/v1/report-runs/{run.pk}/cancel")
    assert (again.status_code, again.json()["code"]) == (409, "run-finished")


def test_cancelling_a_running_one_asks_the_worker(
    operator: Client, run: ReportRun, django_capture_on_commit_callbacks: Any
) -> None:
    stream.starting(run.pk, "session", "tag")
    stream.running(run.pk)
    with django_capture_on_commit_callbacks(execute=True):
        operator.post(f"/reports/runs/{run.pk}/cancel")
    run.refresh_from_db()
    assert (run.state, run.cancel_requested) == (State.RUNNING, True)
    assert RecordingQueue.sent == [("tasks.reports.cancel", (str(run.pk),))]


def test_what_spark_cannot_be_told_is_cancelled_all_the_same(
    operator: Client, run: ReportRun, django_capture_on_commit_callbacks: Any
) -> None:
    """The worker sees the request in the row; Redis is only the shorter way."""
    stream.starting(run.pk, "session", "tag")
    RecordingQueue.broken = True
    with django_capture_on_commit_callbacks(execute=True):
        answer = operator.post(f"/api/v1/report-runs/{run.pk}/cancel")
    run.refresh_from_db()
    assert (answer.status_code, run.cancel_requested) == (200, True)


# ---- the stream


def test_the_same_key_replaces_and_gets_a_new_seq(run: ReportRun) -> None:
    stream.starting(run.pk)
    stream.running(run.pk)
    stream.publish(run.pk, [minute(0, 1), minute(1, 1)], {"text": "reading"})
    stream.publish(run.pk, [minute(1, 5)])
    rows = {row.key: (row.seq, row.data["messages"]) for row in run.rows.all()}
    assert rows == {"orders|0": (3, 1), "orders|1": (4, 5)}
    run.refresh_from_db()
    assert (run.last_seq, run.progress) == (4, {"text": "reading"})


def test_a_row_may_hold_any_text(run: ReportRun) -> None:
    stream.starting(run.pk)
    stream.running(run.pk)
    stream.publish(run.pk, [Row("keys", "a\x00b", {"topic": "t", "key": "\x00\ud7ff", "messages": 1})])
    assert run.rows.get().data["key"] == "\ufffd\ud7ff"


def test_the_end_keeps_final_rows_only(run: ReportRun) -> None:
    stream.starting(run.pk)
    stream.running(run.pk)
    stream.publish(run.pk, [minute(0), minute(1)])
    stream.succeeded(run.pk, [minute(0, 7)])
    assert [(row.key, row.final, row.data["messages"]) for row in run.rows.all()] == [("orders|0", True, 7)]
    run.refresh_from_db()
    assert (run.state, run.rows_count) == (State.SUCCEEDED, 1)


@pytest.mark.parametrize("end", [stream.cancelled, lambda pk: stream.failed(pk, "the topic is gone")])
def test_an_ended_run_takes_nothing_more(run: ReportRun, end: Any) -> None:
    stream.starting(run.pk)
    end(run.pk)
    for late in (
        lambda: stream.publish(run.pk, [minute(0)]),
        lambda: stream.succeeded(run.pk),
        lambda: stream.failed(run.pk, "again"),
        lambda: stream.starting(run.pk),
        lambda: stream.request_cancel(run.pk),
    ):
        with pytest.raises(WorkOver):
            late()


def test_rows_are_read_in_steps_without_loss(viewer: Client, run: ReportRun) -> None:
    stream.starting(run.pk)
    stream.running(run.pk)
    for step in range(4):
        stream.publish(run.pk, [minute(step * 10 + number) for number in range(10)])
    seen, after = [], "0"
    while True:
        document = viewer.get(f"/api/v1/report-runs/{run.pk}/rows", {"after": after, "limit": 3}).json()
        seen += [item["key"] for item in document["items"]]
        after = document["last_seq"]
        if document["complete"]:
            break
    assert len(seen) == len(set(seen)) == 40


# ---- results and files


@pytest.fixture
def finished(run: ReportRun) -> ReportRun:
    stream.starting(run.pk)
    stream.running(run.pk)
    keys = [
        Row("keys", f"k{number}", {"topic": "orders", "key": key, "messages": 10 - number})
        for number, key in enumerate(["=1+1", "+1", "-1", "@SUM(A1)", "\tx", 'a "quoted", one', "plain", None])
    ]
    return stream.succeeded(run.pk, [minute(1, 5), minute(2, None), minute(0, 3), minute(1, 4, "payments"), *keys])


def test_csv_holds_no_formulas(viewer: Client, finished: ReportRun) -> None:
    response = viewer.get(f"/reports/runs/{finished.pk}/download", {"section": "keys", "as": "csv"})
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    assert response["Content-Disposition"].startswith('attachment; filename="throughput-keys-')
    lines = response.content.decode().split("\r\n")
    assert lines[0] == "topic,key,messages"
    assert [line.split(",")[1] for line in lines[1:5]] == ["'=1+1", "'+1", "'-1", "'@SUM(A1)"]
    assert "orders,'\tx,6" in lines
    assert 'orders,"a ""quoted"", one",5' in lines
    assert "orders,,3" in lines, "unknown is empty"


def test_parquet_has_types(viewer: Client, finished: ReportRun) -> None:
    response = viewer.get(f"/api/v1/report-runs/{finished.pk}/download", {"section": "throughput", "as": "parquet"})
    table = pq.read_table(io.BytesIO(response.content))
    assert table.num_rows == 4
    assert str(table.schema.field("minute").type) == "timestamp[ms, tz=UTC]"
    assert table.column("messages").to_pylist() == [None, 5, 4, 3], "newest minute first"


def test_the_whole_first_section_comes_from_the_workers_file(
    viewer: Client, finished: ReportRun, settings: Any, tmp_path: Path
) -> None:
    settings.REPORTS_DIR = tmp_path
    path = tmp_path / "run.parquet"
    section = catalogue.THROUGHPUT.section("throughput")
    path.write_bytes(results.parquet_bytes(section, [minute(number, number).data for number in range(60)]))
    ReportRun.objects.update(parquet_path=str(path))
    address = f"/api/v1/report-runs/{finished.pk}/download"
    lines = viewer.get(address, {"as": "csv"}).content.decode().splitlines()
    assert len(lines) == 61
    assert lines[3] == "orders,broker-a,0,2026-01-01T00:02:00Z,2,10"
    assert viewer.get(address, {"as": "parquet"}).content == path.read_bytes()
    assert len(viewer.get(address, {"section": "keys"}).content.decode().splitlines()) == 9, "the others from the rows"
    path.unlink()
    assert len(viewer.get(address).content.decode().splitlines()) == 5, "a file that is gone is made from the rows"


def test_files_from_elsewhere_are_not_given_out(viewer: Client, finished: ReportRun) -> None:
    ReportRun.objects.update(parquet_path="/etc/passwd")
    assert b"root:" not in viewer.get(f"/api/v1/report-runs/{finished.pk}/download").content


def test_half_a_result_is_no_file(viewer: Client, run: ReportRun) -> None:
    response = viewer.get(f"/api/v1/report-runs/{run.pk}/download")
    assert (response.status_code, response.json()["code"]) == (409, "run-not-finished")


@pytest.mark.parametrize("asked", [{"section": "nope"}, {"as": "exe"}])
def test_downloads_have_rules(viewer: Client, finished: ReportRun, asked: dict[str, str]) -> None:
    assert viewer.get(f"/api/v1/report-runs/{finished.pk}/download", asked).status_code == 400


def test_the_page_shows_tables_and_chart(viewer: Client, finished: ReportRun) -> None:
    text = viewer.get(f"/reports/runs/{finished.pk}/").content.decode()
    chart = json.loads(text.split('<script id="chart-throughput" type="application/json">')[1].split("</script>")[0])
    assert chart["series"] == ["orders", "payments"]
    assert chart["data"][1:] == [[3, 5, None], [0, 4, 0]], "no row: nothing happened; not known: a gap"
    assert "&quot;quoted&quot;" in text


def test_a_failed_run_shows_its_reason(viewer: Client, run: ReportRun) -> None:
    stream.starting(run.pk)
    stream.failed(run.pk, "Python worker exited: <no space left>")
    text = viewer.get(f"/reports/runs/{run.pk}/").content.decode()
    assert "Why it failed" in text
    assert "&lt;no space left&gt;" in text


def test_a_finished_run_shows_its_summary_and_that_percentiles_are_approximate(viewer: Client, run: ReportRun) -> None:
    sentences = [
        "There are no messages in this range.",
        "It goes from <noon>, in 1 queue of 1 topic: " + "o" * 90 + ".",
    ]
    stream.starting(run.pk)
    stream.running(run.pk)
    stream.publish(run.pk, progress={"text": sentences[0], "summary": sentences})
    stream.succeeded(run.pk)
    text = viewer.get(f"/reports/runs/{run.pk}/").content.decode()
    assert sentences[0] in text
    assert "from &lt;noon&gt;, in 1 queue" in text
    assert "Median, 90 % and 99 % are approximate" in text
    assert '<th class="number">99 % ≈</th>' in text
    assert viewer.get(f"/api/v1/report-runs/{run.pk}").json()["progress"]["summary"] == sentences
    notes = [section["note"] for section in viewer.get("/api/v1/reports").json()["items"][0]["sections"]]
    assert [bool(note) for note in notes] == [False, True, False]


def test_a_run_that_ended_early_says_how_far_it_was(viewer: Client, run: ReportRun) -> None:
    stream.starting(run.pk)
    stream.running(run.pk)
    stream.publish(run.pk, [minute(0)], {"text": "reading slice 2", "rows_read": 2000, "rows_total": 60_000})
    stream.failed(run.pk, "Spark went away")
    text = viewer.get(f"/reports/runs/{run.pk}/").content.decode()
    assert "2\u202f000 of 60\u202f000 messages had been read when it ended" in text


def test_a_share_is_a_bar_with_its_number(viewer: Client) -> None:
    run = ReportRun.objects.create(report="timers", parameters={})
    stream.starting(run.pk)
    stream.running(run.pk)
    values = {"late": "up to 2 ms", "delivered": 1, "order": 0}
    rows = [
        Row("lateness", "00", {**values, "share": 0.5, "up_to_here": 0.0314}),
        Row("lateness", "01", {**values, "share": None}),
    ]
    stream.succeeded(run.pk, rows)
    text = viewer.get(f"/reports/runs/{run.pk}/").content.decode()
    assert '<progress value="0.5" aria-hidden="true"></progress>50.0\u202f%' in text
    assert '<progress value="0.0314" aria-hidden="true"></progress>3.14\u202f%' in text
    address = f"/api/v1/report-runs/{run.pk}/download?section=lateness"
    assert viewer.get(address).content.decode().splitlines()[1:] == ["up to 2 ms,1,0.5,0.0314", "up to 2 ms,1,,"]
    table = pq.read_table(io.BytesIO(viewer.get(f"{address}&as=parquet").content))
    assert table["share"].to_pylist() == [0.5, None]


def test_what_does_not_add_up_is_the_largest_of_the_small_series() -> None:
    section = catalogue.TIMERS.section("hours")
    rows = [
        {
            "topic": f"t{number}",
            "hour": f"2026-01-01T0{hour}:00:00Z",
            "p99_ms": None if 2 * number == hour else 10 - number,
        }
        for number in range(4)
        for hour in (0, 2)
    ]
    chart = results.chart_data(section, rows, most_series=1)
    assert chart is not None
    assert chart["series"] == ["t2", "(others)"]
    assert chart["data"][1:] == [[8, None, 8], [9, None, 10]], "nothing delivered is not delivered at once"


def test_small_series_are_summed() -> None:
    section = catalogue.THROUGHPUT.section("throughput")
    rows = [minute(0, 100 - number, f"t{number:02}").data for number in range(12)]
    chart = results.chart_data(section, rows, most_series=3)
    assert chart is not None
    assert chart["series"] == ["t00", "t01", "t02", "(others)"]
    assert chart["data"][4] == [sum(range(89, 98))]


def test_operations_of_runs_point_to_the_run(operator: Client) -> None:
    operator.post("/reports/throughput/run", {"p_minutes": "5"})
    operation = Operation.objects.get()
    text = operator.get(f"/operations/{operation.pk}/").content.decode()
    assert f"/reports/runs/{ReportRun.objects.get().pk}/" in text
