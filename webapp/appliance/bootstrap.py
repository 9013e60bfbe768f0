"""Make a clean clone runnable: the virtual environment, the Python packages, and for tests the Debian packages they drive.

Called by the Makefile with any Python of 3.11 or newer, before anything is installed, so it imports nothing but the standard
library and nothing of ours:

    python -P webapp/appliance/bootstrap.py packages [--dev]     .venv as requirements.lock has it (requirements-dev.lock)
    python -P webapp/appliance/bootstrap.py programs NAME ...    what tests and benchmarks drive, such as chromium

Running it again when all is there changes nothing and takes no time. What cannot be had is said in one sentence.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
VENV = PROJECT / ".venv"
LOCK = PROJECT / "requirements.lock"
DEV_LOCK = PROJECT / "requirements-dev.lock"  # all of the other, and what tests and tools need
BUILDER = "setuptools"  # builds those locked packages that come as source alone

# What tests and benchmarks drive: the first of these programs that is there will do, else the first of these Debian packages
# that can be had brings one. Chromium without windows takes a quarter of the processor that the whole one does.
PROGRAMS = {
    "chromium": (
        ("chromium-headless-shell", "chromium", "chromium-browser"),
        ("chromium-headless-shell", "chromium"),
        "the browser tests",
    ),
    "java": (("java",), ("openjdk-17-jre-headless",), "the tests of Spark reports"),
    "h2load": (("h2load",), ("nghttp2-client",), "the benchmarks of the gRPC endpoint"),
    "gcc": (("gcc", "cc"), ("gcc",), "the benchmarks' load generator"),
}

# A program that stands elsewhere is named by a variable.
_NAMED_BY = {"chromium": ("CHROMIUM",), "java": ("JAVA_HOME",)}

_NETWORK = re.compile(
    r"NewConnectionError|NameResolutionError|Temporary failure in name resolution|ConnectTimeout|ReadTimeout|Connection refused"
    r"|Network is unreachable|No matching distribution found|ProxyError|CERTIFICATE_VERIFY_FAILED|Connection reset"
    r"|ResolutionImpossible",  # what pip says when a locked version is nowhere to be had,
)
_TELL_EVERY = 10
_INSTALL_TIMEOUT_S = 900


class Missing(Exception):
    """The machine lacks something; the message says what to do."""


def say(text: str) -> None:
    """One line of progress."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    """Run as a program; return the exit code."""
    parser = argparse.ArgumentParser(prog="bootstrap")
    commands = parser.add_subparsers(dest="command", required=True)
    packages = commands.add_parser("packages")
    packages.add_argument("--dev", action="store_true")
    programs = commands.add_parser("programs")
    programs.add_argument("names", nargs="+", choices=sorted(PROGRAMS))
    parsed = parser.parse_args(arguments)
    try:
        if parsed.command == "packages":
            install_packages(dev=parsed.dev)
        else:
            install_programs(parsed.names)
    except Missing as error:
        say(f"set-up: {error}")
        return 1
    return 0


# ---- Python packages


def install_packages(dev: bool) -> None:
    """Bring .venv to what is locked; the stamp that the Makefile looks at says that it is done."""
    stamp = VENV / (".installed-dev" if dev else ".installed")
    fingerprint = _fingerprint(dev)
    with LOCK.open() as turn:
        fcntl.flock(turn, fcntl.LOCK_EX)  # two `make` at once take turns
        if not stamp.exists() or stamp.read_text() != fingerprint:
            _make_venv()
            _install_locked(DEV_LOCK if dev else LOCK)
            say("set-up: Python packages are in place")
        stamp.write_text(fingerprint)
        if dev:
            (VENV / ".installed").write_text(_fingerprint(dev=False))


def _fingerprint(dev: bool) -> str:
    content = repr((dev, sys.version_info[:2], (DEV_LOCK if dev else LOCK).read_text()))
    return hashlib.sha256(content.encode()).hexdigest() + "\n"


def _make_venv() -> None:
    python = VENV / "bin" / "python"
    if python.exists() and _succeeds([str(python), "-m", "pip", "--version"]):
        return
    say(f"set-up: making .venv with Python {sys.version_info.major}.{sys.version_info.minor}")
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    if _succeeds(command):
        return
    package = f"python{sys.version_info.major}.{sys.version_info.minor}-venv"  # Debian keeps ensurepip in it
    if not may_install() or apt_install(package) or not _succeeds(command):
        raise Missing(f"a virtual environment cannot be made; install Debian's {package} and run the command again")


def _install_locked(lock: Path) -> None:
    """Only files whose hashes the lock has, those that build the others included.

    pip checks no hash of what it fetches to build a package from source. So the builder comes first, and is used where it is.
    """
    say("set-up: installing Python packages (some hundred megabytes the first time; PySpark is most of it)")
    with tempfile.NamedTemporaryFile("w", suffix=".lock") as builder:
        builder.write(locked(lock.read_text())[BUILDER])
        builder.flush()
        _pip_install("--requirement", builder.name)
    _pip_install("--no-build-isolation", "--requirement", str(lock))


def locked(text: str) -> dict[str, str]:
    """What a lock says of each package, hashes included, by the package's name as registries spell it."""
    found: dict[str, str] = {}
    for part in re.finditer(r"^([A-Za-z0-9._-]+)==(?:.*\\\n)*.*\n", text, re.MULTILINE):
        name = re.sub(r"[._-]+", "-", part[1]).lower()
        found[name] = found.get(name, "") + part[0]  # one for each range of Python versions
    return found


def _pip_install(*arguments: str) -> None:
    command = [str(VENV / "bin" / "python"), "-m", "pip", "install", "--require-hashes", "--progress-bar", "off"]
    command += ["--no-input", "--disable-pip-version-check", *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    assert process.stdout is not None
    lines: list[str] = []
    progress = Progress(say)
    for line in process.stdout:
        lines.append(line.rstrip())
        progress.saw(line)
    if process.wait() != 0:
        raise Missing(explain(lines))


class Progress:
    """Turns pip's many lines into a few."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._collected = 0

    def saw(self, line: str) -> None:
        """Look at one line that pip wrote."""
        if line.startswith("Collecting "):
            self._collected += 1
            if self._collected % _TELL_EVERY == 0:
                self._tell(f"set-up:   {self._collected} packages found")
        elif match := re.match(r"\s*Downloading (\S+) \((\d+(?:\.\d+)? [MG]B)\)", line):
            if float(match[2].split()[0]) >= 20 or match[2].endswith("GB"):
                self._tell(f"set-up:   downloading {match[1].rpartition('/')[2]} ({match[2]})")
        elif line.startswith(("Building wheels for collected packages", "Installing collected packages")):
            self._tell(f"set-up:   {line.partition(':')[0].lower()}")


def explain(lines: Sequence[str]) -> str:
    """One sentence for a failed pip, and its own last error."""
    error = next(
        (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "pip said nothing"
    )
    if any(_NETWORK.search(line) for line in lines):
        return (
            "the Python packages cannot be fetched: no package registry answers, or it lacks them; check the network, or name a "
            f"mirror (PIP_INDEX_URL or pip.conf), and run the command again ({error.partition(': for help')[0]})"
        )
    if any("THESE PACKAGES DO NOT MATCH THE HASHES" in line for line in lines):
        return f"a Python package is not the one that was locked: it was changed where it came from, or on the way ({error})"
    if any("No space left on device" in line for line in lines):
        return "the Python packages cannot be installed because the disk is full; they need about 2 GB"
    return f"the Python packages cannot be installed ({error})"


# ---- programs


def install_programs(names: Sequence[str]) -> None:
    """Make sure that each program is on this machine, installing Debian packages where that is possible."""
    # apt-get installs nothing at all when it does not know one of the packages: the second time they come without what it lacks
    for choose in (0, -1):
        packages = list(dict.fromkeys(PROGRAMS[name][1][choose] for name in names if not _is_there(name)))
        if packages and may_install():
            say(f"set-up: installing Debian packages {' '.join(packages)}")
            apt_install(*packages)
    for name in names:
        if not _is_there(name):
            _, choice, what_for = PROGRAMS[name]
            package = choice[-1]
            raise Missing(
                f"{what_for} need {name}; install Debian's {package} (apt-get install {package}) and run again"
            )


def _is_there(name: str) -> bool:
    if any(os.environ.get(variable) for variable in _NAMED_BY.get(name, ())):
        return True
    return any(shutil.which(program) for program in PROGRAMS[name][0])


def may_install() -> bool:
    """Whether this process may install Debian packages."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def apt_install(*packages: str) -> str:
    """Install Debian packages; return the last words of apt-get when that fails, else an empty string."""
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ("apt-get", "install", "-y", "--no-install-recommends", "-q", *packages)
    said = ""
    for step in (install, ("apt-get", "update", "-q"), install):  # package lists may be missing or old
        try:
            done = subprocess.run(
                step,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_INSTALL_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        if step is install and done.returncode == 0:
            return ""
        said = next(
            (line for line in reversed((done.stdout + done.stderr).splitlines()) if line.strip()), "no reason given"
        )
    return said


def _succeeds(command: Sequence[str]) -> bool:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
