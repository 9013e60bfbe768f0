"""Rules about the source itself, so that no reviewer has to keep them: directions of imports, purity of cores, no left-overs.

Only tracked files are looked at. A rule that bites says in its message what to do instead.
"""

from __future__ import annotations

import ast
import gc
import re
import subprocess
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PROGRAMS = ("brokerd", "controllerd", "webapp", "tasks")
OURS = ("remoting", *PROGRAMS, "tests")

# Who may import whom of ours, besides itself. A second shared package or a sideways import is a decision, not a convenience.
MAY_IMPORT = {
    "remoting": set(),
    "brokerd": {"remoting"},
    "controllerd": {"remoting"},
    "webapp": {"remoting"},
    "tasks": {"remoting", "webapp"},  # the console's models, loaded through the Celery app's Django set-up
    "tests": set(OURS),
    "manage.py": {"webapp"},
    "docs": set(),
}

# The rooms of a package, lowest layer first: a room imports from lower layers and from itself, never sideways, never up.
# A file beside the rooms is a room of its own. Rooms in a set may know one another: the console's apps, each a subject's pages,
# REST and changes, link to one another.
LAYERS: dict[str, list[list[str] | set[str]]] = {
    "remoting": [
        [
            "checksum",
            "codes",
            "exit_codes",
            "exposition",
            "group_settings",
            "invariants",
            "java_hash",
            "names",
            "timer_names",
        ],
        ["reserve", "torn_write"],
        ["sealed_text"],
        ["errors", "message_groups"],
        ["disk", "sealed_text", "settings", "tier"],
        ["bare_json", "facts", "frame", "properties_text", "record"],
        ["access", "live_settings", "liveness"],
        ["transport"],
        ["exporter", "registry"],
        ["client", "guarding"],
    ],
    "brokerd": [
        ["filters", "loop", "native"],
        ["store"],
        ["journal"],
        ["members", "metadata", "placement", "statistics"],
        ["delay"],
        ["timers"],
        ["pop"],
        ["consuming", "retry", "transactions"],
        ["sending"],
        ["replication"],
        ["cluster", "repair", "tiers"],
        ["processors", "proxy"],
        ["config"],
        ["composition"],
        ["assembly"],
        ["__main__"],
    ],
    "brokerd/processors": [
        ["answers", "bodies", "cold", "fields", "mounted", "parked", "pass_on", "rights", "sliced"],
        ["clients"],
        ["offsets"],
        ["administration", "pop", "pulling", "sending"],
        ["registry"],
    ],
    "brokerd/store": [
        ["put_status", "settings", "unit"],
        ["log"],
        ["queues"],
        ["derived", "sight"],
        ["cold", "read_levels", "run"],
        ["draft", "start", "store_reads", "wanted_files"],
        ["again", "index", "seams"],
        ["native_again"],
        ["scrub", "store"],
        ["housekeeping"],
    ],
    "brokerd/replication": [
        ["kept_files", "log", "rocketmq_peers"],
        ["epochs", "settings"],
        ["calm", "wire"],
        ["required_set"],
        ["roles"],
        ["controllers", "facts", "sockets"],
        ["requests"],
        ["replica"],
    ],
    "controllerd": [
        ["metrics", "nameserver", "raft", "records"],
        ["access", "pushes", "replicas", "settings"],
        ["anchors", "placements"],
        ["state"],
        ["exposition", "live_settings"],
        ["elections", "placing"],
        ["processors"],
        ["comeback"],
        ["assembly"],
        ["__main__"],
    ],
    "webapp": [
        [
            "announce",
            "converters",
            "display",
            "errors",
            "intake",
            "paging",
            "places",
            "redis_urls",
            "waiting",
            "wishes",
        ],
        ["channel_layer", "crowd", "feeds", "gateway", "lifecycle", "middleware", "origin", "queue", "rules"],
        ["snapshot"],
        {
            *("access", "accounts", "audit", "clusters", "groups", "history", "messages", "operations", "reports"),
            *("timers", "topics", "transactions"),
            *("api", "context", "live", "pages", "palette", "push"),
        },
        ["appliance"],
        ["lean", "settings", "sockets", "urls"],
        ["asgi", "first_byte", "framing"],
        ["serving"],
    ],
    "tasks": [
        ["changes", "heartbeat_file", "locks", "snapshot", "stopping", "tier"],
        ["beat_scheduler", "claims", "transport"],
        [
            "appliance",
            "controller_changes",
            "heartbeat",
            "history",
            "refresh",
            "retiring",
            "spark",
            "timer_recalls",
            "watching",
        ],
        ["app", "collector", "export", "mounting"],
        ["operations", "reports"],
        ["audit", "beat", "due_exports", "schedule", "worker"],
    ],
}

# The shared package loads in every program, so what it may need from outside is counted.
REMOTING_MAY_NEED = {"orjson", "uvloop", "lz4", "zstandard", "zlib_ng"}
LOADED_WHEN_USED = {
    "remoting/access/sealing.py": "cryptography",  # by those who have secrets to open
    "remoting/tier/object_stores.py": "obstore",  # by those who have a tier
}

IMPURE = {"asyncio", "socket", "ssl", "os", "time", "random", "threading", "subprocess", "django", "celery", "pyspark"}
PURE_MARK = re.compile(r"\(pure\)[.:]?$")

MOST_LINES = 700

TOP_LEVEL = {
    *("webapp", "brokerd", "controllerd", "tasks", "tests", "manage.py"),
    *("remoting", "docs", "README.md", "CHANGELOG.md", "LICENSE"),
    *("Makefile", ".ci", ".gitignore", "pyproject.toml", "requirements.lock", "requirements-dev.lock"),
}

# What starts without being imported: programs, what Django and Celery find by convention, and set-up before anything is there.
ENTRY_POINTS = re.compile(
    r"manage|\w+\.__main__|webapp\.settings|webapp\.asgi|tasks|webapp\.appliance\.bootstrap"
    r"|webapp\.\w+\.(models|migrations\.\w+)|webapp\.(.+\.)?management\.commands\.\w+|webapp\.(.+\.)?templatetags\.\w+"
)

WALL_CLOCK = re.compile(r"time\.time(_ns)?|(datetime\.)?(datetime|date)\.(now|utcnow|today)")

# Spelled in pieces, so that this file does not break its own rules.
LEFT_OVERS = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX")) + r")\b")
HOSTS = (
    "pypi" + ".org",
    "python" + "hosted",
    "registry.npm" + "js",
    "maven" + ".org",
    "proxy.go" + "lang",
    "crates" + ".io",
)
MACHINE_PATHS = re.compile(r"(?<![\w.~*-])/(work|farm|root|home/\w+)/|/tmp/" + r"(lab|studio)")


@pytest.fixture(scope="module", autouse=True)
def _trees_only_here() -> Iterator[None]:
    """The syntax trees of all files are millions of objects: the collector of cycles, which would find none in them, does not
    look at them, and no later test of the process carries them along."""
    gc.disable()
    yield
    for kept in (nodes, parsed):
        kept.cache_clear()
    gc.enable()


@cache
def tracked() -> tuple[Path, ...]:
    """The files of the repository, relative to its root, without what others wrote (vendored files)."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = (Path(name) for name in listed.split("\0") if name)
    return tuple(path for path in paths if "vendor" not in path.parts and (ROOT / path).is_file())


def python_files(*packages: str) -> list[Path]:
    """Tracked Python files below the packages; all of them without arguments."""
    return [path for path in tracked() if path.suffix == ".py" and (not packages or path.parts[0] in packages)]


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse((ROOT / path).read_text(), str(path))


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


def module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, *, for_types_too: bool = True) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything that a file imports, at any depth; `from a import b` gives a.b."""
    package = list(path.parent.parts)
    skipped = set() if for_types_too else _typing_only(parsed(path))
    for node in nodes(path):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{stem}.{alias.name}") for alias in node.names)


def _typing_only(tree: ast.Module) -> set[int]:
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }


def first(dotted: str) -> str:
    return dotted.partition(".")[0]


def report(what_to_do: str, findings: Iterable[str]) -> None:
    found = sorted(findings)
    assert not found, f"{what_to_do}:\n  " + "\n  ".join(found)


def test_programs_do_not_import_one_another() -> None:
    findings = []
    for path in python_files():
        allowed = MAY_IMPORT[path.parts[0]] | {path.parts[0]}
        for line, name in imports(path):
            if first(name) in OURS and first(name) not in allowed:
                findings.append(f"{path}:{line} imports {name}")
    report("what two programs need moves down into remoting; webapp names tasks by string", findings)


def test_tasks_use_of_the_console_ends_at_its_models_and_services() -> None:
    findings = [
        f"{path}:{line} imports {name}"
        for path in python_files("tasks")
        for line, name in imports(path)
        if re.match(r"webapp\.(.+\.)?(views|urls|forms|consumers|asgi|api)\b", name)
    ]
    report("pages and their plumbing are the web process's own", findings)


def _rooms(package: str) -> dict[str, dict[str, str]]:
    """Of every room of a package: the other rooms that it imports from, each with one place where it does."""
    stem = package.replace("/", ".") + "."
    found: dict[str, dict[str, str]] = {}
    for path in python_files(stem.partition(".")[0]):
        module = module_name(path)
        if not module.startswith(stem):
            continue
        room = first(module.removeprefix(stem))
        others = found.setdefault(room, {})
        for line, name in imports(path):
            if name.startswith(stem) and (other := first(name.removeprefix(stem))) != room:
                others.setdefault(other, f"{path}:{line} imports {name}")
    return found


@pytest.mark.parametrize("package", LAYERS)
def test_rooms_import_downwards(package: str) -> None:
    level = {room: number for number, layer in enumerate(LAYERS[package]) for room in layer}
    rooms = _rooms(package)
    report(f"LAYERS has to name the rooms of {package} as they are", level.keys() ^ rooms.keys())
    up = {
        (room, other): place
        for room, others in rooms.items()
        for other, place in others.items()
        if other in level and level[other] >= level[room]
    }
    together = [layer for layer in LAYERS[package] if isinstance(layer, set)]
    report(
        "move down what both rooms need",
        (place for arrow, place in up.items() if not any(layer.issuperset(arrow) for layer in together)),
    )


def test_modules_import_one_another_in_no_circle() -> None:
    modules = {module_name(path): path for path in python_files(*PROGRAMS, "remoting")}
    needs = {
        name: {each for _, dotted in imports(path) for each in (dotted, dotted.rpartition(".")[0]) if each in modules}
        for name, path in modules.items()
    }
    for name in needs:
        needs[name] -= {name}
    while free := [name for name, others in needs.items() if not others & needs.keys()]:
        for name in free:
            del needs[name]
    report("move down what all of a circle need", needs)


def test_the_shared_package_needs_little() -> None:
    import sys

    allowed = sys.stdlib_module_names | REMOTING_MAY_NEED | {"remoting"}
    findings = [
        f"{path}:{line} imports {name}"
        for path in python_files("remoting")
        for line, name in imports(path)
        if first(name) not in allowed and LOADED_WHEN_USED.get(str(path)) != first(name)
    ]
    report("every program pays for what remoting loads", findings)


def test_pure_modules_touch_no_world() -> None:
    findings = []
    for path in python_files(*PROGRAMS, "remoting"):
        docstring = ast.get_docstring(parsed(path)) or ""
        if not PURE_MARK.search(docstring.partition("\n")[0]):
            continue
        for line, name in imports(path, for_types_too=False):
            if first(name) in IMPURE:
                findings.append(f"{path}:{line} imports {name}")
    report("a core takes now_ms and a random.Random; sockets, files and clocks belong to its shell", findings)


def test_the_wall_clock_is_for_people() -> None:
    """Others may set it by an hour at any time: time-outs take a monotonic clock; wall time is called by its name."""
    findings = []
    for path in python_files("brokerd", "controllerd", "remoting"):
        named = {
            id(inner)
            for node in nodes(path)
            if isinstance(node, ast.FunctionDef) and node.name.strip("_") in ("wall_ms", "wall_s")
            for inner in ast.walk(node)
        }
        for node in nodes(path):
            if isinstance(node, ast.Call) and WALL_CLOCK.fullmatch(ast.unparse(node.func)) and id(node) not in named:
                findings.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    report("read it in a function named wall_ms, and hand that to who needs it", findings)


def test_modules_say_what_they_are_for() -> None:
    findings = [
        str(path)
        for path in python_files(*PROGRAMS, "remoting")
        if (ROOT / path).stat().st_size and "migrations" not in path.parts and not ast.get_docstring(parsed(path))
    ]
    report("the first lines of a module say what it owns and who calls it", findings)


def test_no_print() -> None:
    findings = [
        f"{path}:{node.lineno}"
        for path in python_files(*PROGRAMS, "remoting", "manage.py")
        for node in nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    report("log, or write to the stream that you were given", findings)


def test_no_task_without_an_owner() -> None:
    """A started task is kept by somebody who cancels it: a TaskGroup, or whoever holds the returned task."""
    findings = []
    for path in python_files(*PROGRAMS, "remoting"):
        groups = set(_task_groups(path))
        for node in nodes(path):
            if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
                continue
            function = node.value.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            receiver = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
            if name in ("create_task", "ensure_future") and receiver not in groups:
                findings.append(f"{path}:{node.lineno} {ast.unparse(node)[:80]}")
    report("give the task to a TaskGroup or a TaskOwner, or keep it and cancel it", findings)


def _task_groups(path: Path) -> Iterator[str]:
    """The expressions of a file that stand for a TaskGroup: bound by `async with`, annotated, or assigned."""
    for node in nodes(path):
        if isinstance(node, ast.AsyncWith):
            for item in node.items:
                if item.optional_vars is not None and "TaskGroup" in ast.unparse(item.context_expr):
                    yield ast.unparse(item.optional_vars)
        elif isinstance(node, ast.arg) and node.annotation is not None and "TaskGroup" in ast.unparse(node.annotation):
            yield node.arg
            yield f"self._{node.arg}"
        elif isinstance(node, ast.AnnAssign) and "TaskGroup" in ast.unparse(node.annotation):
            yield ast.unparse(node.target)


def texts() -> Iterator[tuple[Path, int, str]]:
    for path in tracked():
        try:
            lines = (ROOT / path).read_text().splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, start=1):
            yield path, number, line


def test_no_left_overs() -> None:
    report(
        "finish it, or say it in an issue",
        (f"{path}:{n} {line.strip()[:80]}" for path, n, line in texts() if LEFT_OVERS.search(line)),
    )


def test_no_registry_and_no_place_of_one_machine() -> None:
    findings = [
        f"{path}:{number} {line.strip()[:80]}"
        for path, number, line in texts()
        if any(host in line for host in HOSTS) or MACHINE_PATHS.search(line)
    ]
    report("where packages come from and where things lie is each machine's own business", findings)


def test_no_file_is_too_long() -> None:
    counted = ((path, len((ROOT / path).read_text().splitlines())) for path in python_files())
    report(
        f"above {MOST_LINES} lines: split it by subject",
        (f"{path} {lines}" for path, lines in counted if lines > MOST_LINES),
    )


def test_the_top_level_is_as_agreed() -> None:
    report("find a place for it below", {path.parts[0] for path in tracked()} - TOP_LEVEL)


def test_no_orphan_modules() -> None:
    """Every module is reached from something that runs: imported, or named in a string (settings, command lines)."""
    modules = {module_name(path): path for path in python_files(*PROGRAMS, "remoting", "manage.py")}
    reached: set[str] = set()
    waiting = [name for name in modules if ENTRY_POINTS.fullmatch(name)]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        mentioned = {dotted for _, dotted in imports(modules[name])} | set(_dotted_strings(modules[name]))
        for dotted in mentioned:
            parts = dotted.split(".")
            waiting += [prefix for end in range(len(parts)) if (prefix := ".".join(parts[: end + 1])) in modules]
    empty = {name for name, path in modules.items() if not (ROOT / path).stat().st_size}
    report("nothing that runs uses these; delete them, or wire them in", modules.keys() - reached - empty)


def _dotted_strings(path: Path) -> Iterator[str]:
    pattern = re.compile(rf"(?:{'|'.join(PROGRAMS)})(?:\.\w+)*")
    for node in nodes(path):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = pattern.match(node.value)
            if match and (match.end() == len(node.value) or node.value[match.end()] == ":"):
                yield match[0]
                yield f"{match[0]}.__main__"


def test_the_readme_shows_the_shortest_program_as_it_is() -> None:
    program = (ROOT / "docs/examples/hello.py").read_text().partition('"""\n\n')[2]
    assert f"```python\n{program}```" in (ROOT / "README.md").read_text()


DECISIONS = sorted(str(path) for path in tracked() if path.match("docs/decisions/*.md"))


@pytest.mark.parametrize("page", ["README.md", "docs/ARCHITECTURE.md", *DECISIONS])
def test_what_the_documents_tell_to_run_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    targets = set(re.findall(r"^([a-z][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    commands = {path.stem for path in tracked() if path.parts[-3:-1] == ("management", "commands")} | {"up", "status"}
    findings = [
        f"make {name}"
        for name in re.findall(r"(?:^|`|\$ )make ([a-z0-9-]+)", text, re.MULTILINE)
        if name not in targets
    ]
    findings += [
        f"manage.py {name}" for name in re.findall(r"(?:manage\.py|`logboom) ([a-z_]+)", text) if name not in commands
    ]
    findings += [
        f"file {name}"
        for name in re.findall(rf"\]\(([^)#:]+)\)|`((?:docs|{'|'.join(OURS)})/[\w./-]+\w)`", text)
        for name in name
        if name and not (ROOT / page).parent.joinpath(name).exists() and not (ROOT / name).exists()
    ]
    report(f"{page} promises what is not there", findings)


def test_every_decision_is_found_from_the_architecture() -> None:
    text = (ROOT / "docs/ARCHITECTURE.md").read_text()
    report(
        "a page that nothing leads to", (page for page in DECISIONS if f"]({page.removeprefix('docs/')})" not in text)
    )


MOST_PARAMETERS = 6

# Constructors that take more, until they are divided; an entry that is no longer needed goes.
TAKE_MORE = {
    "remoting/frame.py Command",  # a frame has so many fields, and one is made for each message
}


def test_constructors_are_given_two_or_three_things() -> None:
    """Who needs many things is doing many things; what belongs together goes into a dataclass."""
    counted = {
        f"{path} {each.name}": len(_parameters(method))
        for path in python_files(*PROGRAMS, "remoting")
        for each in nodes(path)
        if isinstance(each, ast.ClassDef)
        for method in each.body
        if isinstance(method, ast.FunctionDef) and method.name == "__init__"
    }
    many = {name for name, count in counted.items() if count > MOST_PARAMETERS}
    report(f"more than {MOST_PARAMETERS} parameters: divide it, or group what belongs together", many - TAKE_MORE)
    report("these do not need their entry in TAKE_MORE any more", TAKE_MORE - many)


def _parameters(method: ast.FunctionDef) -> list[ast.arg]:
    """Those of a method, without self."""
    return [*method.args.posonlyargs, *method.args.args, *method.args.kwonlyargs][1:]
