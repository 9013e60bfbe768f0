"""The class-data archive with a real Java, which takes the options and writes the file: of a small program among Spark's jars."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pyspark
import pytest

from tasks.spark.archive import Archive
from tasks.spark.server import find_java

pytestmark = pytest.mark.slow

JAR = "zookeeper-[0-9]*.jar"
MAIN = "org.apache.zookeeper.version.VersionInfoMain"


def test_what_a_java_wrote_as_it_ended_is_where_the_next_one_finds_its_classes(tmp_path: Path) -> None:
    java_home = find_java().home
    assert java_home is not None
    jars = sorted((Path(pyspark.__file__).parent / "jars").glob(JAR))
    archive = Archive(tmp_path, java_home, jars)

    def where_its_classes_were() -> str:
        """The line of the log that says where the program's main class was found."""
        options = [*archive.options(), "-Xlog:class+load", "-cp", ":".join(map(str, jars))]
        done = subprocess.run(
            [Path(java_home) / "bin" / "java", *options, MAIN],
            capture_output=True,
            text=True,
            timeout=120,
        )
        archive.ended(done.returncode, came_up=True, did_work=True)
        assert done.returncode == 0, done.stderr
        (found,) = [line for line in done.stdout.splitlines() if f" {MAIN} source: " in line]
        return found

    assert jars[0].name in where_its_classes_were()
    assert archive.path.is_file()
    assert "shared objects file (top)" in where_its_classes_were()
