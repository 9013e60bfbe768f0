from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from webapp.lean import POSTGRESQL, UNUSED, unused

ROOT = Path(__file__).parents[3]


def run(directory: Path, program: str, *words: str, **environ: str) -> str:
    """What a module of this text says when it is started without what is left out."""
    (directory / "started.py").write_text(program)
    ended = subprocess.run(
        [sys.executable, "-m", "webapp.lean", "started", *words],
        cwd=ROOT,
        env={"PYTHONPATH": str(directory), "LOGBOOM_DATA_DIR": str(directory), **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_what_a_database_needs_is_there_for_it() -> None:
    assert set(unused({})) == {*UNUSED, *POSTGRESQL}
    assert not set(unused({"DATABASE_URL": "postgresql://a/b"})) & set(POSTGRESQL)


def test_a_module_is_started_as_python_would(tmp_path: Path) -> None:
    program = "import sys; print(__name__, sys.argv[1:], sys.modules['__main__'].__file__ == __file__)"
    assert run(tmp_path, program, "--port", "1") == "__main__ ['--port', '1'] True"


def test_what_is_left_out_is_as_if_it_were_not_installed(tmp_path: Path) -> None:
    program = f"""
import importlib
for name in {(*UNUSED, *POSTGRESQL)}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        print(name)
"""
    assert run(tmp_path, program).split() == [*UNUSED, *POSTGRESQL]
    assert "psycopg" not in run(tmp_path, program, DATABASE_URL="postgresql://a/b").split()


def test_the_console_and_the_tasks_load_without_it(tmp_path: Path) -> None:
    program = """
import webapp.asgi, webapp.urls, tasks.collector, tasks.worker
from tasks.app import app
app.loader.import_default_modules()
print("loaded")
"""
    assert run(tmp_path, program) == "loaded"


def test_the_supervisor_and_spark_s_load_no_more_than_they_use(tmp_path: Path) -> None:
    supervisor = "import sys, webapp.appliance.up; print('redis' in sys.modules)"
    assert run(tmp_path, supervisor) == "False"
    spark = "import sys; from tasks.spark import server; server._spark_home(); print('pyspark' in sys.modules)"
    assert run(tmp_path, spark) == "False"
