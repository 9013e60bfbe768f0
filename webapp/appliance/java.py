"""The Java runtime that Spark needs: found, installed where that is possible, or missed in one sentence.

Nothing else of the appliance needs Java, so its absence never prevents a start: the sentence is handed to the workers, and a
report that is asked for answers with it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from webapp.appliance.bootstrap import apt_install, may_install

LEAST_VERSION = 17
DEBIAN_PACKAGES = ("openjdk-17-jre-headless", "default-jre-headless")

_ASK_TIMEOUT_S = 20


@dataclass(frozen=True, slots=True)
class Java:
    """A usable runtime, or the reason why there is none; exactly one of the two is set."""

    home: str | None
    problem: str | None


def find(environ: Mapping[str, str]) -> Java:
    """Look where a person would: JAVA_HOME, then `java` on PATH."""
    refusals = []
    home = environ.get("JAVA_HOME")
    on_path = shutil.which("java", path=environ.get("PATH"))
    for where, program in (("JAVA_HOME", home and str(Path(home) / "bin" / "java")), ("PATH", on_path)):
        if not program:
            continue
        said = _ask(program)
        if said is None:
            refusals.append(f"{program} (from {where}) does not run")
        elif said[0] < LEAST_VERSION:
            refusals.append(f"{program} (from {where}) is Java {said[0]}")
        else:
            return Java(said[1], None)
    found = "; ".join(refusals) if refusals else "no Java was found"
    return Java(
        None,
        f"Spark reports need Java {LEAST_VERSION} or newer, but {found}; "
        f"install {DEBIAN_PACKAGES[0]} or set JAVA_HOME, then start again",
    )


def find_or_install(environ: Mapping[str, str], progress: Callable[[str], None]) -> Java:
    """As `find`; on a Debian machine where this process may install packages, a missing runtime is installed."""
    java = find(environ)
    if java.home is not None or not may_install():
        return java
    progress(f"installing a Java runtime for Spark ({DEBIAN_PACKAGES[0]}); this is done once")
    failure = ""
    for package in DEBIAN_PACKAGES:
        failure = apt_install(package)
        if not failure:
            return find(environ)
    return Java(None, f"{java.problem} (installing it failed: {failure})")


def _ask(program: str) -> tuple[int, str] | None:
    """(major version, home) as the runtime itself says; None when it does not run."""
    try:
        done = subprocess.run(
            [program, "-XshowSettings:properties", "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_ASK_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    said = done.stdout + done.stderr
    version = re.search(r"^\s*java\.specification\.version = (?:1\.)?(\d+)", said, re.MULTILINE)
    home = re.search(r"^\s*java\.home = (.+?)\s*$", said, re.MULTILINE)
    if done.returncode != 0 or version is None or home is None:
        return None
    return int(version[1]), home[1]
