"""`docs/RELIABILITY.md` names the code that closes each window of loss and the tests that prove it: all of it must exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from brokerd.consuming.read_place import PullSettings
from brokerd.replication.settings import ReplicationSettings
from brokerd.store.settings import StoreSettings
from remoting.settings import describe
from tests.sim.registry import CANNOT_BE_CLOSED, MUTANTS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs/RELIABILITY.md").read_text()
ROWS = {cells[0]: cells for line in PAGE.splitlines() if (cells := [cell.strip() for cell in line.split("|")[1:-1]])}
WINDOWS = [f"W{number}" for number in range(1, 26)]
CODE = re.compile(r"`((?:brokerd|controllerd|remoting|tasks|webapp)/[\w/]+\.py):([\w.]+)`")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
FILE = re.compile(r"`((?:tests|docs|brokerd|controllerd)/[\w/.]+)`")


@cache
def names_of(path: str) -> frozenset[str]:
    """Every function and class of a file, methods as Class.method."""
    return frozenset(_names(ast.parse((ROOT / path).read_text()).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from _names(node.body, f"{prefix}{node.name}.")


def test_every_window_has_a_row_with_code_or_consequence_and_a_test() -> None:
    for window in WINDOWS:
        assert window in ROWS, f"{window} is missing"
        _, _, code, tests, remains = ROWS[window]
        assert CODE.search(code) or remains, f"{window}: neither code that closes it nor what the user sees"
        assert TEST.search(tests), f"{window}: no test"
        if not CODE.search(code):
            assert code in ("cannot be closed", "not in the default mode, where k is all"), f"{window}: {code}"


def test_every_window_has_a_mutant_that_opens_it() -> None:
    """A window that nobody can open again would be closed by luck: `make mutants` finds each of these."""
    windows = {cell for cell in ROWS if re.fullmatch(r"W\d+", cell)}
    opened = {mutant.window for mutant in MUTANTS}
    assert windows - opened == CANNOT_BE_CLOSED
    assert not {each for each in opened if re.fullmatch(r"W\d+", each)} - windows
    assert {window for window in windows if "cannot be closed" in ROWS[window]} == CANNOT_BE_CLOSED


def test_everything_that_the_page_names_exists() -> None:
    missing = [
        f"{path}: {name}"
        for path, name in [*CODE.findall(PAGE), *TEST.findall(PAGE)]
        if not (ROOT / path).is_file() or name not in names_of(path)
    ]
    missing += [path for path in FILE.findall(PAGE) if not (ROOT / path).exists()]
    assert not missing, "docs/RELIABILITY.md names what is not there:\n  " + "\n  ".join(missing)
    assert len(CODE.findall(PAGE)) > 25
    assert len(TEST.findall(PAGE)) > 40


def test_the_settings_that_the_page_names_exist() -> None:
    text = describe({"replication": ReplicationSettings(), "pull": PullSettings(), "store": StoreSettings()})
    missing = [
        name for name in set(re.findall(r"`((?:replication|pull|store)\.\w+)", PAGE)) if f"  {name}=" not in text
    ]
    assert not missing, missing


def test_the_sections_follow_one_another_and_those_referred_to_exist() -> None:
    numbers = [int(number) for number in re.findall(r"^## (\d+)\. ", PAGE, re.MULTILINE)]
    assert numbers == list(range(1, len(numbers) + 1))
    assert {int(number) for number in re.findall(r"section (\d+)", PAGE)} <= set(numbers)
    for subject in ("Promised", "Not promised", "The windows", "Reads from replicas", "Groups with fixed roles"):
        assert re.search(rf"^## \d+\. {subject}$", PAGE, re.MULTILINE), f"the section on {subject.lower()} is missing"
