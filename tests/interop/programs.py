"""Programs around clients that others wrote: built when a test needs them, run against a server, asked for what they found.

A program prints one line for each feature that it checks, "passed NAME ..." or "failed NAME: why"; tests assert these lines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.interop.apache import LOGGING, Apache, Unavailable, cache_directory, cached_jars
from tests.support.cluster import eventually

JAVA_4: Final = "4.9.8"
JAVA_GRPC: Final = "5.2.0"
NODE_CLIENT: Final = "ali-ons@3.12.0"
NODE_GRPC: Final = "rocketmq-client-nodejs@1.0.8"
CPP_CLIENT: Final = "rocketmq==0.4.4"  # the binding to librocketmq that ships the library itself
_HERE: Final = Path(__file__).parent
_JAVA_SOURCES: Final = _HERE / "java" / "clients"
_LONGEST_S: Final = 400
_LINE = re.compile(r"^(passed|failed) ([\w-]+)(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program printed. `results` has each check's name with the empty string, or with what it failed for."""

    results: Mapping[str, str]
    output: str

    def expect(self, check: str) -> None:
        """Fail unless the program says that this check passed."""
        assert check in self.results, f"the program did not come to {check}; it printed:\n{self.output[-4000:]}"
        assert not self.results[check], f"{check}{self.results[check]}"


@dataclass(frozen=True, slots=True)
class Program:
    """A command to which the arguments are added."""

    command: Sequence[str]
    environment: Mapping[str, str]

    def run(self, arguments: Sequence[str], directory: Path) -> Outcome:
        """Run it to its end, or end it."""
        with Running(self, arguments, directory) as running:
            return running.outcome()

    def start(self, arguments: Sequence[str], directory: Path) -> Running:
        """For a program that is talked to; use it as a context manager."""
        return Running(self, arguments, directory)


class Running:
    """A program that runs. What it prints is kept in `directory`."""

    def __init__(self, program: Program, arguments: Sequence[str], directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._log = directory / "output"
        self._read = 0  # bytes that `new_lines` returned
        with open(self._log, "wb") as log:
            self._process = subprocess.Popen(
                [*program.command, *arguments],
                cwd=directory,
                env={**os.environ, **program.environment, "HOME": str(directory)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def __enter__(self) -> Running:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    @property
    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def new_lines(self) -> list[str]:
        """The whole lines that it printed since this was asked last."""
        with open(self._log, "rb") as log:
            log.seek(self._read)
            whole = log.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        return whole.decode(errors="replace").split("\n") if whole else []

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def tell(self, line: str) -> None:
        """Write a line to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        self._process.stdin.flush()

    def wait_for(self, what: str, pattern: str, least: int) -> int:
        """Wait until the last number that follows the pattern is at least this; the number."""

        def reached() -> int | None:
            assert self._process.poll() is None, f"the program ended:\n{self.output[-4000:]}"
            found = re.findall(pattern, self.output)
            return int(found[-1]) if found and int(found[-1]) >= least else None

        return eventually(what, reached, 60)

    def outcome(self) -> Outcome:
        """Wait until it ends, or end it; what it found."""
        limit = threading.Timer(_LONGEST_S, self._process.kill)
        limit.start()
        try:
            code = self._process.wait()
        finally:
            limit.cancel()
        output = self.output
        results = {
            name: "" if word == "passed" else rest
            for word, name, rest in sorted(_LINE.findall(output), key=lambda found: found[0] == "failed")
        }
        return Outcome(results, f"{output}\n(exit code {code})")


def java(generation: str, main: str, apache: Apache, directory: Path, properties: Sequence[str] = ()) -> Program:
    """A Java program of ours with the clients of a generation, "java-4" or "java-5". Raises Unavailable.

    It is compiled into the directory unless that was done. `properties` are the JVM's, written NAME=VALUE.
    """
    jars, sources = (_jars_4(), "v4") if generation == "java-4" else (apache.jars, "v5")
    classes = directory / f"{generation}-classes"
    if not classes.exists():
        _compile(
            Path(apache.java), jars, [*_JAVA_SOURCES.glob("*.java"), *(_JAVA_SOURCES / sources).glob("*.java")], classes
        )
        (classes / "rmq.logback.xml").write_text(LOGGING.replace("LEVEL", "OFF"))
    given = (f"user.home={directory}/{generation}-home", "rocketmq.client.logUseSlf4j=false", *properties)
    return _java_program(apache, classes, jars, main, given)


def java_grpc(apache: Apache, directory: Path, main: str = "FirstConnection") -> Program:
    """A program of ours around the Java client of version 5, whose protocol is gRPC. Raises Unavailable."""
    jars = cached_jars(f"rocketmq-client-java-{JAVA_GRPC}", (f"org.apache.rocketmq:rocketmq-client-java:{JAVA_GRPC}",))
    classes = directory / "java-grpc-classes"
    if not classes.exists():
        _compile(Path(apache.java), jars, [*(_HERE / "java" / "grpc").glob("*.java")], classes)
    return _java_program(apache, classes, jars, main, (f"user.home={directory}/java-grpc-home",))


def _java_program(apache: Apache, classes: Path, jars: Path, main: str, properties: Sequence[str]) -> Program:
    options = (
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "--add-opens",
        "java.base/java.nio=ALL-UNNAMED",
    )
    words = [apache.java, *options, *(f"-D{each}" for each in properties), "-cp", f"{classes}:{jars}/*", main]
    return Program(words, {})


def _compile(java_program: Path, jars: Path, files: Sequence[Path], classes: Path) -> None:
    compiler = java_program.resolve().with_name("javac")
    if not compiler.exists():
        raise Unavailable("the programs around Java clients need a compiler: install a JDK (default-jdk-headless)")
    command = [str(compiler), "-nowarn", "-d", str(classes), "-cp", f"{jars}/*", *map(str, files)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert done.returncode == 0, done.stdout


def _jars_4() -> Path:
    """The clients of the last 4.x. Raises Unavailable."""
    return cached_jars(f"rocketmq-{JAVA_4}", (f"org.apache.rocketmq:rocketmq-client:{JAVA_4}",))


def go(directory: Path) -> Program:
    """Our Go program, built into the directory. Raises Unavailable."""
    return _go(_HERE / "go", "1.21", directory)


def go_grpc(directory: Path) -> Program:
    """Our program around the Go client of version 5, built into the directory. Raises Unavailable."""
    return _go(_HERE / "go-grpc", "1.24", directory)


def rust_grpc() -> Program:
    """Our program around the Rust client of version 5. Raises Unavailable."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise Unavailable("the program around the Rust client needs Rust 1.85 or newer (cargo)")
    target = cache_directory() / "rust-grpc"  # what it needs takes minutes to build
    _build(
        _HERE / "rust-grpc",
        [cargo, "fetch"],
        [cargo, "build", "--release", "--quiet", "--target-dir", str(target)],
    )
    return Program([str(target / "release" / "checks")], {})


def _go(sources: Path, version: str, directory: Path) -> Program:
    compiler = shutil.which("go")
    if compiler is None:
        raise Unavailable(f"the program around the Go client needs Go {version} or newer (golang-go)")
    target = directory / "checks"
    build = [compiler, "build", "-mod=readonly", "-o", str(target), "."]
    _build(sources, [compiler, "mod", "download"], build)
    return Program([str(target)], {})


def _build(sources: Path, fetch: Sequence[str], build: Sequence[str]) -> None:
    """Get what the program needs, and build it. Raises Unavailable when it cannot be had."""
    fetched = subprocess.run(fetch, cwd=sources, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if fetched.returncode:
        raise Unavailable(f"what {sources.name} needs could not be had: {fetched.stdout.strip()}")
    _compile_with(build, sources)


def _compile_with(build: Sequence[str], sources: Path) -> None:
    built = subprocess.run(build, cwd=sources, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert built.returncode == 0, built.stdout


def node() -> Program:
    """Our program around the Node client of remoting. Raises Unavailable."""
    return _node(NODE_CLIENT, "checks.js")


def node_grpc(program: str = "first_connection") -> Program:
    """A program of ours around the Node client of version 5. Raises Unavailable."""
    return _node(NODE_GRPC, f"grpc/{program}.js")


def _node(client: str, program: str) -> Program:
    runtime, npm = shutil.which("node"), shutil.which("npm")
    if runtime is None or npm is None:
        raise Unavailable("the program around the Node client needs Node and npm (nodejs, npm)")
    cache = _cached(client, lambda target: [npm, "install", "--no-audit", "--no-fund", "--prefix", target, client])
    return Program([runtime, str(_HERE / "node" / program)], {"NODE_PATH": str(cache / "node_modules")})


def python_grpc(program: str) -> Program:
    """A program of ours around the Python client of version 5, which the tests' own environment has."""
    return Program([sys.executable, str(_HERE / "python" / f"{program}.py")], {})


def cpp() -> Program:
    """Our program around the C++ client. Raises Unavailable."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:"]
    cache = _cached(CPP_CLIENT, lambda target: [*pip, "--target", target, CPP_CLIENT])
    environment = {"PYTHONPATH": str(cache)}
    tried = subprocess.run(
        [sys.executable, "-c", "import rocketmq.client"],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if tried.returncode:
        raise Unavailable(f"the C++ client does not load here: {tried.stdout.strip().splitlines()[-1]}")
    return Program([sys.executable, str(_HERE / "cpp" / "checks.py")], environment)


def cpp_grpc(directory: Path) -> Program:
    """Our program around the C++ client of version 5, built into the directory. Raises Unavailable.

    Nobody packages that client: it is found where it is installed, or where CPATH, LIBRARY_PATH and LD_LIBRARY_PATH say.
    """
    compiler = shutil.which("g++")
    if compiler is None:
        raise Unavailable("the program around the C++ client of version 5 needs a compiler (g++)")
    sources, target = _HERE / "cpp-grpc", directory / "checks"
    needed = "#include <rocketmq/SimpleConsumer.h>\nint main() {}\n"
    look = [compiler, "-std=c++17", "-x", "c++", "-", "-lrocketmq", "-o", str(target)]
    if subprocess.run(look, input=needed, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).returncode:
        raise Unavailable("the C++ client of version 5 is not installed (rocketmq/*.h, librocketmq.so.5)")
    options = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-pthread")
    _compile_with([compiler, *options, "checks.cpp", "-lrocketmq", "-o", str(target)], sources)
    return Program([str(target)], {})


def _cached(package: str, install: Callable[[str], Sequence[str]]) -> Path:
    """The directory in the cache with a package, installed once by the command that `install` gives for a directory."""
    cache = cache_directory() / re.sub(r"[@=]+", "-", package)
    if not cache.exists():
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="resolving-", dir=cache.parent) as work:
            target = f"{work}/package"
            done = subprocess.run(install(target), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if done.returncode:
                raise Unavailable(f"{package} could not be had: {done.stdout.strip().splitlines()[-1]}")
            os.rename(target, cache)
    return cache
