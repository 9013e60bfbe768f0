from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from remoting.errors import SettingsError
from tasks.spark import launch
from tasks.spark.errors import is_cancelled, is_worker_lost, reason
from tasks.spark.lifecycle import (
    DRAFT_IDLE_MS,
    DRAFT_TIMEOUT_MS,
    LONGEST_RETRY_MS,
    MOST_SESSIONS,
    START_TIMEOUT_MS,
    STOP_TIMEOUT_MS,
    Action,
    Lifecycle,
    State,
)
from tasks.spark.processes import tree_memory_bytes
from tasks.spark.retrying import again_if_worker_lost
from tasks.spark.settings import SparkSettings
from tests.support.examples import examples
from tests.unit.tasks.patience import patient

IDLE_MS = 600_000
LIMITS = {"idle_stop_ms": IDLE_MS, "most_memory_bytes": 1000}


def ready(leases: int = 1) -> Lifecycle:
    """A server that listens, with so many leases."""
    lifecycle = Lifecycle(**LIMITS)
    for _ in range(leases or 1):
        lifecycle.lease_opened()
    lifecycle.started(0)
    lifecycle.listening(10)
    if not leases:
        lifecycle.lease_closed(10)
    return lifecycle


def test_it_starts_when_it_is_wanted_and_not_before() -> None:
    lifecycle = Lifecycle(**LIMITS)
    assert lifecycle.decide(0)[0] is Action.NOTHING
    lifecycle.lease_opened()
    assert lifecycle.decide(0)[0] is Action.START


def test_a_start_that_hangs_is_killed_and_the_next_waits_longer_each_time() -> None:
    lifecycle = Lifecycle(**LIMITS)
    lifecycle.lease_opened()
    now_ms, waits = 0, []
    for _ in range(9):
        lifecycle.started(now_ms)
        assert lifecycle.decide(now_ms + START_TIMEOUT_MS - 1)[0] is Action.NOTHING
        now_ms += START_TIMEOUT_MS
        assert lifecycle.decide(now_ms)[0] is Action.KILL
        assert lifecycle.exited("killed by SIGKILL", now_ms)
        waits.append(lifecycle.next_look_ms(now_ms))
        assert lifecycle.decide(now_ms + waits[-1] - 1)[0] is Action.NOTHING
        now_ms += waits[-1]
        assert lifecycle.decide(now_ms)[0] is Action.START
    assert waits[:3] == [1000, 2000, 4000]
    assert waits[-1] == LONGEST_RETRY_MS


def test_it_stops_when_nobody_needed_it_for_a_while() -> None:
    lifecycle = ready(leases=0)
    assert lifecycle.decide(10 + IDLE_MS - 1)[0] is Action.NOTHING
    assert lifecycle.decide(10 + IDLE_MS) == (Action.STOP, "no report needed it for a while")
    lifecycle.stop_asked("idle", 20 + IDLE_MS)
    assert lifecycle.decide(20 + IDLE_MS + STOP_TIMEOUT_MS)[0] is Action.KILL
    assert not lifecycle.exited("exit code 143", 30 + IDLE_MS)
    assert lifecycle.state is State.STOPPED


def test_a_worn_server_is_replaced_only_between_leases() -> None:
    lifecycle = ready(leases=2)
    for _ in range(MOST_SESSIONS):
        lifecycle.session_created()
    lifecycle.measured(10_000)
    lifecycle.found_unhealthy("a report vanished")
    assert lifecycle.decide(100)[0] is Action.NOTHING
    lifecycle.lease_closed(100)
    lifecycle.lease_closed(100)
    assert lifecycle.decide(100) == (Action.STOP, "a report vanished")


@pytest.mark.parametrize(
    ("sessions", "memory", "told"), [(MOST_SESSIONS, 0, "20 sessions"), (1, 2 << 20, "grew to 2 MiB")]
)
def test_sessions_and_memory_wear_it_out(sessions: int, memory: int, told: str) -> None:
    lifecycle = ready(leases=0)
    for _ in range(sessions):
        lifecycle.session_created()
    lifecycle.measured(memory)
    action, why = lifecycle.decide(100)
    assert action is Action.STOP
    assert told in why


def test_a_server_that_does_not_work_is_replaced_at_once_and_leases_are_told() -> None:
    lifecycle = ready(leases=1)
    lifecycle.found_broken("its first query failed")
    assert lifecycle.decide(100)[0] is Action.STOP
    lifecycle.stop_asked("broken", 100)
    assert lifecycle.exited("exit code 143", 200)
    assert lifecycle.decide(200)[0] is Action.START


def test_who_cannot_use_a_server_takes_it_from_nobody_for_whom_it_works() -> None:
    lifecycle = ready(leases=2)
    lifecycle.session_created()
    lifecycle.found_broken("its first query failed")
    assert lifecycle.decide(100)[0] is Action.NOTHING
    lifecycle.lease_closed(100)
    assert lifecycle.decide(100)[0] is Action.NOTHING, "the other report goes on"
    lifecycle.lease_closed(200)
    assert lifecycle.decide(200) == (Action.STOP, "its first query failed")


def test_one_that_writes_down_its_classes_does_so_soon_after_its_first_report_and_has_time() -> None:
    lifecycle = Lifecycle(**LIMITS)
    lifecycle.lease_opened()
    lifecycle.started(0, drafts=True)
    lifecycle.listening(10)
    lifecycle.session_created()
    assert lifecycle.decide(DRAFT_IDLE_MS + 10)[0] is Action.NOTHING
    lifecycle.lease_closed(20)
    assert lifecycle.decide(DRAFT_IDLE_MS + 19)[0] is Action.NOTHING
    now_ms = DRAFT_IDLE_MS + 20
    assert lifecycle.decide(now_ms) == (Action.STOP, "it writes down what will make the next start short")
    lifecycle.stop_asked("idle", now_ms)
    assert lifecycle.decide(now_ms + DRAFT_TIMEOUT_MS - 1)[0] is Action.NOTHING
    assert lifecycle.decide(now_ms + DRAFT_TIMEOUT_MS)[0] is Action.KILL


def test_a_lease_that_comes_while_it_stops_gets_the_next_one() -> None:
    lifecycle = ready(leases=0)
    lifecycle.stop_asked("idle", 100)
    lifecycle.lease_opened()
    assert lifecycle.decide(150)[0] is Action.NOTHING
    assert not lifecycle.exited("exit code 143", 200)
    assert lifecycle.decide(200)[0] is Action.START
    lifecycle.started(200)
    assert lifecycle.generation == 2


def test_an_end_by_itself_says_how() -> None:
    lifecycle = ready()
    assert lifecycle.exited("killed by SIGKILL", 100)
    assert lifecycle.detail == "Spark ended by itself: killed by SIGKILL"
    lifecycle.start_failed("no such file", 200)
    assert lifecycle.detail == "no such file"
    assert lifecycle.decide(300)[0] is Action.NOTHING


class AnyLife(RuleBasedStateMachine):
    """Any order of events: decisions fit the state, and a healthy server with a lease is never taken away."""

    @initialize()
    def begin(self) -> None:
        self.now_ms = 0
        self.lifecycle = Lifecycle(**LIMITS)
        self.broken = False

    @rule()
    def open(self) -> None:
        self.lifecycle.lease_opened()

    @precondition(lambda self: self.lifecycle.leases > 0)
    @rule()
    def close(self) -> None:
        self.lifecycle.lease_closed(self.now_ms)

    @rule(memory=st.integers(0, 3000))
    def measure(self, memory: int) -> None:
        self.lifecycle.measured(memory)

    @precondition(lambda self: self.lifecycle.state is State.READY)
    @rule()
    def wear(self) -> None:
        self.lifecycle.session_created()
        self.lifecycle.found_unhealthy("worn")

    @precondition(lambda self: self.lifecycle.state is State.READY)
    @rule()
    def break_it(self) -> None:
        self.broken = True
        self.lifecycle.found_broken("broken")

    @precondition(lambda self: self.lifecycle.state is State.STARTING)
    @rule()
    def listen(self) -> None:
        self.lifecycle.listening(self.now_ms)

    @precondition(lambda self: self.lifecycle.state is not State.STOPPED)
    @rule()
    def die(self) -> None:
        self.lifecycle.exited("killed", self.now_ms)

    @rule(ms=st.integers(1, 2 * IDLE_MS))
    def carry_out(self, ms: int) -> None:
        self.now_ms += ms
        action, why = self.lifecycle.decide(self.now_ms)
        if action is Action.START:
            assert self.lifecycle.leases > 0
            self.lifecycle.started(self.now_ms)
            self.broken = False
        elif action is Action.STOP:
            assert self.lifecycle.leases == 0 or self.broken
            assert why
            self.lifecycle.stop_asked(why, self.now_ms)

    @invariant()
    def somebody_looks_again(self) -> None:
        assert self.lifecycle.next_look_ms(self.now_ms) > 0


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = hypothesis_settings(patient, max_examples=examples(60))


# ---- settings and command line


def test_settings_have_bounds_and_say_them() -> None:
    settings = SparkSettings.read({}, cores=64)
    assert (settings.master, settings.driver_memory_mb, settings.is_local) == ("local[4]", 1024, True)
    one_core = SparkSettings.read({"LOGBOOM_SPARK_MASTER": "local[*]", "LOGBOOM_REPORTS_AT_ONCE": "1"}, cores=1)
    assert (one_core.master, one_core.task_master) == ("local[1]", "local[1,4]")
    assert SparkSettings.read({"LOGBOOM_SPARK_MASTER": "spark://a:7077"}, cores=1).task_master == "spark://a:7077"
    assert SparkSettings.read({"LOGBOOM_SPARK_MASTER": "local[8]"}, cores=1).master == "local[8]"
    assert SparkSettings.read({"LOGBOOM_SPARK_MASTER": "sc://spark:15002"}, cores=1).is_external
    assert not SparkSettings.read({"LOGBOOM_SPARK_MASTER": "spark://a:7077"}, cores=1).is_local
    for name, value in {
        "LOGBOOM_SPARK_MASTER": "mesos://a",
        "LOGBOOM_SPARK_DRIVER_MEMORY": "511m",
        "LOGBOOM_SPARK_IDLE_MINUTES": "0",
        "LOGBOOM_REPORTS_AT_ONCE": "17",
    }.items():
        with pytest.raises(SettingsError, match=f"{name} is '{value}'; it must be"):
            SparkSettings.read({name: value}, cores=2)


def test_the_token_is_on_no_command_line_and_the_server_on_loopback_only() -> None:
    settings = SparkSettings.read({"LOGBOOM_DATA_DIR": "/somewhere/data"}, cores=2)
    programs = launch.Programs(Path("/spark"), (Path("/spark/a.jar"), Path("/spark/b.jar")), "/java", "/venv/python")
    argv = launch.command(settings, programs, 4711, ["-XX:SharedArchiveFile=/cache/a.jsa"])
    assert argv[0] == "/java/bin/java"
    assert argv[-3:] == ["-cp", "/spark/a.jar:/spark/b.jar", launch.SERVER_CLASS]
    assert "-Dspark.connect.grpc.binding.address=127.0.0.1" in argv
    assert "-Dspark.ui.enabled=false" in argv
    assert "-Dspark.authenticate=true" in argv
    assert "-XX:SharedArchiveFile=/cache/a.jsa" in argv
    # a collector that somebody's JAVA_TOOL_OPTIONS ask for: Java refuses to start with two
    assert argv.index("-XX:-UseG1GC") < argv.index("-XX:+UseSerialGC")
    environ = launch.environment(
        settings,
        {"PATH": "/bin", "SPARK_REMOTE": "sc://elsewhere"},
        programs,
        project_dir=Path("/project"),
        token="secret",
    )
    assert environ["SPARK_CONNECT_AUTHENTICATE_TOKEN"] == "secret"
    assert "secret" not in " ".join(argv)
    assert "SPARK_REMOTE" not in environ
    assert (environ["PYSPARK_PYTHON"], environ["PYTHONPATH"]) == ("/venv/python", "/project")


def test_on_a_cluster_its_own_scripts_start_the_server() -> None:
    settings = SparkSettings.read({"LOGBOOM_SPARK_MASTER": "spark://a:7077"}, cores=2)
    programs = launch.Programs(Path("/spark"), (), "/java", "/venv/python")
    argv = launch.command(settings, programs, 4711)
    assert argv[0] == "/spark/bin/spark-submit"
    assert argv[argv.index("--master") + 1] == "spark://a:7077"
    assert "spark.ui.enabled=false" in argv
    assert not any("spark.master" in word for word in argv)


def test_what_we_ship_to_a_cluster_is_what_the_source_imports() -> None:
    import io
    import zipfile

    from tasks.spark.session import shipped_code

    names = set(zipfile.ZipFile(io.BytesIO(shipped_code())).namelist())
    assert {"tasks/__init__.py", "tasks/spark/source.py", "remoting/record/codec.py"} <= names
    assert not any(name.startswith(("webapp", "tasks/reports")) for name in names)


def test_memory_of_a_process_tree_counts_descendants() -> None:
    assert tree_memory_bytes(os.getppid()) >= tree_memory_bytes(os.getpid())
    assert tree_memory_bytes(os.getpid()) > 1_000_000
    assert tree_memory_bytes(2**22 + 1) == 0


# ---- Spark's errors as sentences

PYTHON_FAILURE = """[PYTHON_DATA_SOURCE_ERROR] Failed to plan: Traceback (most recent call last):
  File "/somewhere/source.py", line 75, in reader
    raise InvalidParameter("inner: outer")
remoting.errors.InvalidParameter: give exactly one of subscribe (topics) and assign (queues)
 SQLSTATE: 38000

JVM stacktrace:
org.apache.spark.sql.AnalysisException: something else
"""


STAGE_FAILURE = (
    "(org.apache.spark.SparkException) Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent "
    "failure: Lost task 0.3 in stage 3.0 (TID 9) (127.0.0.1 executor driver): "
    "java.lang.ArithmeticException: cannot divide by zero\n"
    "\tat org.apache.spark.Something.run(Something.scala:1)\n\nDriver stacktrace:"
)
WORKER_KILLED = STAGE_FAILURE.replace(
    "java.lang.ArithmeticException: cannot divide by zero",
    "org.apache.spark.SparkException: Python worker exited unexpectedly (crashed): java.io.EOFException",
)
RPC_GONE = """<_MultiThreadedRendezvous of RPC that terminated with:
\tstatus = StatusCode.UNAVAILABLE
\tdetails = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect"
>"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (PYTHON_FAILURE, "give exactly one of subscribe (topics) and assign (queues)"),
        ("[UNRESOLVED] No such column. SQLSTATE: 42703\n\nJVM stacktrace:\nx", "[UNRESOLVED] No such column."),
        ("(org.apache.spark.SparkException) Job aborted\n\tat x", "Job aborted"),
        (
            WORKER_KILLED,
            "Spark's Python worker ended in the middle of its work, again and again: it was killed, or ran out of",
        ),
        (RPC_GONE, "Spark does not answer any more: it ended or was killed while the report ran."),
        (
            "java.lang.OutOfMemoryError: Java heap space",
            "Spark ran out of memory. Give it more with LOGBOOM_SPARK_DRIVER",
        ),
        ("org.apache.spark.SparkException: Task not serializable", "Task not serializable"),
        (STAGE_FAILURE, "cannot divide by zero"),
        (
            "java.lang.NullPointerException",
            "Spark failed and did not say why (NullPointerException); the log of the process",
        ),
        ("", "Spark failed and did not say why (ValueError); the log of the process"),
        ("x" * 5000, "x" * 999 + "…"),
    ],
)
def test_the_innermost_sentence_is_the_reason(text: str, expected: str) -> None:
    told = reason(ValueError(text))
    assert told.startswith(expected)
    assert "org.apache" not in told
    assert "\n" not in told


def test_only_a_worker_that_vanished_is_a_reason_to_ask_again() -> None:
    from pyspark.errors import PySparkException

    assert is_worker_lost(ValueError(WORKER_KILLED))
    assert not is_worker_lost(ValueError(PYTHON_FAILURE))
    answers: list[object] = [PySparkException(WORKER_KILLED), 5, PySparkException(STAGE_FAILURE), 6]

    def ask() -> object:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert again_if_worker_lost(ask) == 5
    with pytest.raises(PySparkException):
        again_if_worker_lost(ask)
    assert answers == [6]


def test_interruption_is_told_apart() -> None:
    assert is_cancelled(ValueError("(x) [OPERATION_CANCELED] Operation has been canceled. SQLSTATE: HY008"))
    assert not is_cancelled(ValueError("Job aborted"))
