"""Text scenarios: a file is a list of commands, each with the exact output it must give.

    # a comment
    command word key=value key=(a,b)
    input lines, if any
    ----
    expected output, up to the next blank line

`REWRITE_SCENARIOS=1` writes what the commands really answered into the file; review the difference before committing it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from remoting.errors import LogboomError

_SEPARATOR = "----"


@dataclass(slots=True)
class Command:
    """One command of a scenario file."""

    line_number: int
    name: str
    words: list[str] = field(default_factory=list)
    options: dict[str, str] = field(default_factory=dict)
    input: list[str] = field(default_factory=list)

    def option(self, key: str, default: str | None = None) -> str:
        """The value of key=value; the default when it is not given."""
        value = self.options.get(key, default)
        assert value is not None, f"line {self.line_number}: {self.name} needs {key}=..."
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number given as key=value."""
        return int(self.option(key, None if default is None else str(default)))

    def list(self, key: str, default: str | None = None) -> list[str]:
        """The names of key=(a,b) or key=a."""
        return [part for part in self.option(key, default).strip("()").split(",") if part]


def run_scenario(path: Path, execute: Callable[[Command], str]) -> None:
    """Run a file against `execute`, which returns a command's output; our own errors count as output."""
    lines = path.read_text().splitlines()
    rewritten: list[str] = []
    failures: list[str] = []
    position = 0
    while position < len(lines):
        if not lines[position].strip() or lines[position].startswith("#"):
            rewritten.append(lines[position])
            position += 1
            continue
        separator = lines.index(_SEPARATOR, position)
        command = _parse(position + 1, lines[position:separator])
        end = separator + 1
        while end < len(lines) and lines[end].strip():
            end += 1
        expected = lines[separator + 1 : end]
        actual = _output(command, execute)
        rewritten += [*lines[position : separator + 1], *actual]
        if actual != expected:
            failures.append(f"{path.name}:{command.line_number}: {lines[position]}\n" + _side_by_side(expected, actual))
        position = end
    if os.environ.get("REWRITE_SCENARIOS"):
        path.write_text("\n".join(rewritten) + "\n")
    else:
        assert not failures, "\n\n".join(failures[:3])


def _parse(line_number: int, block: list[str]) -> Command:
    name, *arguments = block[0].split()
    command = Command(line_number, name, input=block[1:])
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if equals:
            command.options[key] = value
        else:
            command.words.append(argument)
    return command


def _output(command: Command, execute: Callable[[Command], str]) -> list[str]:
    try:
        text = execute(command)
    except LogboomError as error:
        text = f"{type(error).__name__}: {error}"
    lines = [line.rstrip() for line in text.splitlines()]
    return [line for line in lines if line] or ["ok"]


def _side_by_side(expected: list[str], actual: list[str]) -> str:
    return "\n".join(["expected:", *(f"  {line}" for line in expected), "actual:", *(f"  {line}" for line in actual)])
