"""The layout of a record is written in `remoting/record/` and nowhere else: no struct of a head, no place in one, no mark."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from remoting.record import layout
from remoting.record.layout import HEAD_BYTES, HOST_BYTES, SYS_V6_HOSTS, Field
from tests.test_tidy import ROOT, python_files, report

EXEMPT = ("brokerd/sending/",)  # the send path's inner loop, until it takes its structs from the layout

MARKS = {layout.MAGIC_V1, layout.MAGIC_V2, layout.MAGIC_BLANK}
HALF_HOST = HOST_BYTES // 2  # an address, or a port
BOUNDARIES = sorted(
    {field.at for field in Field}
    | {field.at + HALF_HOST for field in Field if field.host_bit}
    | {HEAD_BYTES, layout.RECORD_OVERHEAD_BYTES}
)
# Numbers that are seldom anything else than a place in a record, whatever its hosts. Round ones are.
PLACES = {
    place
    for place in {field.place(hosts) for field in Field for hosts in (0, SYS_V6_HOSTS)} | set(BOUNDARIES)
    if place > 20 and place not in (40, 52, 64, 80, 100)
}
LEAST_BYTES = 28  # of a struct that has the shape of a head: shorter ones are anybody's
FORMAT = re.compile(r"[<>!=@]?(\d*[xbBhHiIqQs])+")
ITEM = re.compile(r"(\d*)([xbBhHiIqQs])")
WIDTHS = {"x": 1, "s": 1, "b": 1, "h": 2, "i": 4, "q": 8}


def spellings(source: str) -> Iterator[tuple[int, str]]:
    """(line, what) of each place where a file writes down what only the layout may."""
    tree = ast.parse(source)
    products = {
        id(side)
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        for side in (node.left, node.right)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant):
            continue
        if type(node.value) is int and node.value in MARKS:
            yield node.lineno, f"the mark {node.value:#x}"
        elif type(node.value) is int and node.value in PLACES and id(node) not in products:
            yield node.lineno, f"the place {node.value}"
        elif isinstance(node.value, bytes) and any(mark.to_bytes(4, "big") in node.value for mark in MARKS):
            yield node.lineno, "a mark's bytes"
        elif isinstance(node.value, str) and FORMAT.fullmatch(node.value) and has_the_shape_of_a_head(node.value):
            yield node.lineno, f"the struct {node.value!r}"


def has_the_shape_of_a_head(kinds: str) -> bool:
    """Whether what the struct takes are fields of a record's head, one after the other, from some field on."""
    items = [(int(count or 1), kind) for count, kind in ITEM.findall(kinds)]
    if sum(count * WIDTHS[kind.lower()] for count, kind in items) < LEAST_BYTES:
        return False
    return any(_fits(items, begin) for begin in BOUNDARIES)


def _fits(items: list[tuple[int, str]], position: int) -> bool:
    taken = 0
    for count, kind in items:
        width = WIDTHS[kind.lower()]
        whole = kind in "xs"
        for _ in range(1 if whole else count):
            end = position + (count if whole else width)
            if end not in BOUNDARIES:
                return False
            if not whole and BOUNDARIES.index(end) != BOUNDARIES.index(position) + 1:
                return False
            taken += kind != "x"
            position = end
    return taken > 1


def test_no_other_file_spells_the_layout() -> None:
    findings = [
        f"{path}:{line} {what}"
        for path in python_files("brokerd", "tasks", "controllerd")
        if not str(path).startswith(EXEMPT)
        for line, what in spellings((ROOT / path).read_text())
    ]
    report("take fields, structs and marks of records from remoting.record", findings)


@pytest.mark.parametrize(
    "line",
    [
        'HEAD = struct.Struct(">iI20xq")',
        'HEAD = struct.Struct(">iIIi4xqqi16xq20xi")',
        'each = f"20xqi16xq20xi{body}x{before}s"',
        'SHARED = struct.Struct(">iqIIqIIiq")',
        'each = f"I8sqq52s{body}s"',
        "_POSITION_AT = 28",
        "sys_flag = _INT(record, 36)[0]",
        "offset = int.from_bytes(head[28:36])",
        "body = at + 88",
        "if magic == 0xCBD43194: pass",
        r'at = data.find(b"\xda\xa3\x20\xa7")',
    ],
)
def test_the_rule_bites(line: str) -> None:
    assert list(spellings(line))


@pytest.mark.parametrize(
    "line",
    [
        'UNIT = struct.Struct(">qiq")',
        'PREFIX = struct.Struct(">iI")',
        'HEADER = struct.Struct(">qqqqii")',
        'TRANSFER = struct.Struct(">iiqiqqi")',
        "age_ms = 72 * HOUR_MS",
        "MAX_NAMES = 64",
    ],
)
def test_the_rule_lets_others_be(line: str) -> None:
    assert not list(spellings(line))


def test_the_fields_of_the_head_follow_one_another() -> None:
    for hosts in (0, layout.SYS_BORN_HOST_V6, layout.SYS_STORE_HOST_V6, SYS_V6_HOSTS):
        position = 0
        for field in Field:
            assert field.place(hosts) == position
            position += _size(field, hosts)
        assert layout.heads(*Field)[hosts].size == layout.heads(Field.BODY_LENGTH)[hosts].size == position
    assert layout.HEAD_V4.size == HEAD_BYTES == 88
    assert layout.RECORD_OVERHEAD_BYTES == 91


def _size(field: Field, hosts: int) -> int:
    return layout.HOST_V6_BYTES if field.host_bit & hosts else field.size
