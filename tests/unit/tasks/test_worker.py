from __future__ import annotations

import pytest

from tasks.app import app
from tasks.worker import options


def test_processes_are_always_there_or_only_while_there_is_work() -> None:
    always = options(["--queue", "default", "--processes", "2"])
    assert (always["queues"], always["concurrency"], always["autoscale"]) == ("default", 2, None)
    rarely = options(["--queue", "reports", "--at-most", "3", "--most-memory-kib", "1000"])
    assert (rarely["queues"], rarely["autoscale"], rarely["max_memory_per_child"]) == ("reports", (3, 0), 1000)


def test_celery_takes_the_options_as_they_are() -> None:
    worker = app.WorkController(**options(["--queue", "reports", "--at-most", "3"]))
    assert (worker.max_concurrency, worker.min_concurrency) == (3, 0)
    assert set(worker.app.amqp.queues.consume_from) == {"reports"}
    assert worker.hostname.startswith("reports@")


@pytest.mark.parametrize(
    "words",
    [
        ["--queue", "default"],
        ["--queue", "other", "--processes", "1"],
        ["--queue", "default", "--processes", "0"],
        ["--queue", "default", "--processes", "1", "--at-most", "1"],
    ],
)
def test_what_makes_no_worker_is_refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        options(words)
    assert ended.value.code == 2
    assert "usage: python -m tasks.worker" in capsys.readouterr().err
