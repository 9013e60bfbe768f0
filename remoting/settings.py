"""Settings of the daemons: small frozen dataclasses, each field described and bounded where it is declared, checked at start.

A daemon's settings declare each group in one line (`group`). From these two declarations follow its command line (`--set
part.key=value`) and help text, what may change while it runs, and what it tells the original's tools.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields, replace
from typing import Any, Final, Generic, TypeVar

from remoting.errors import SettingsError

T = TypeVar("T")

_TRUE: Final = {"true": True, "false": False}
_GROUP: Final = {"group": True}


class Live(Generic[T]):
    """A settings group that may change while the daemon runs. Its users are given this at construction: they read `value` when
    they need it, or subscribe if something has to be done about a change."""

    __slots__ = ("_subscribers", "value")

    def __init__(self, value: T) -> None:
        self.value = value
        self._subscribers: list[Callable[[T], None]] = []

    def subscribe(self, changed: Callable[[T], None]) -> None:
        self._subscribers.append(changed)

    def change(self, value: T) -> None:
        """Only for who keeps the settings (`live_settings.ChangedSettings`), and tests."""
        self.value = value
        for changed in self._subscribers:
            changed(value)


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
    live: bool = False,
    original: str = "",
    original_unit: int = 1,
    path: bool = False,
) -> Any:
    """Declare a field: its default, a sentence for people, and what it may be.

    `live`: it may be changed while the daemon runs. `original` is its name there, where the unit is `original_unit` of ours. What
    is a path is told to nobody.
    """
    bounds = {"minimum": minimum, "maximum": maximum, "choices": tuple(choices)}
    there = {"original": original, "unit": original_unit}
    return field(default=default, metadata={"help": help, "live": live, "path": path, **bounds, **there})


def group(kind: type[Any]) -> Any:
    """Declare a settings group among a daemon's settings."""
    return field(default_factory=kind, metadata=_GROUP)


def default_groups(kind: type[Any]) -> dict[str, Any]:
    """The groups of a daemon's settings by name, as they are when nothing is set."""
    return {
        each.name: each.default_factory()
        for each in fields(kind)
        if "group" in each.metadata and each.default_factory is not MISSING
    }


def groups_of(daemon: Any) -> dict[str, Any]:
    """The groups of a daemon's settings by name."""
    return {each.name: getattr(daemon, each.name) for each in fields(daemon) if "group" in each.metadata}


def each_of(groups: Mapping[str, Any]) -> Iterator[tuple[str, Any, Field[Any]]]:
    """`part.key`, value and field of every setting."""
    for part, group in groups.items():
        for each in fields(group):
            yield f"{part}.{each.name}", getattr(group, each.name), each


def names_of(groups: Mapping[str, Any], *, live: bool = False) -> dict[str, str]:
    """The original's name -> `part.key`, of all settings that have one, or of those that may change."""
    return {
        each.metadata["original"]: name
        for name, _, each in each_of(groups)
        if each.metadata["original"] and (each.metadata["live"] or not live)
    }


def shown(groups: Mapping[str, Any]) -> dict[str, str]:
    """All settings that are no path, under our names and the original's."""
    texts: dict[str, str] = {}
    for name, value, each in each_of(groups):
        there = each.metadata
        if not there["path"]:
            texts[name] = as_text(value)
            if there["original"]:
                texts[there["original"]] = as_text(value) if there["unit"] == 1 else f"{value / there['unit']:g}"
    return texts


def override(parts: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """The settings groups with `part.key=value` assignments applied, every field checked.

    Raises SettingsError that names the assignment, the rule, and what there is to set.
    """
    changed = dict(parts)
    for assignment in assignments:
        name, separator, text = assignment.partition("=")
        part, dot, key = name.partition(".")
        if not separator or not dot:
            raise SettingsError(
                f"--set {assignment!r}: write part.key=value, for example --set store.retention_hours=48"
            )
        if part not in changed or key not in {each.name for each in fields(changed[part])}:
            known = ", ".join(name for name, _, _ in each_of(parts))
            raise SettingsError(f"--set {assignment!r}: there is no setting {name}; there are {known}")
        changed[part] = replace(changed[part], **{key: _parse(name, text, getattr(changed[part], key))})
    for part, group in changed.items():
        check(part, group)
    return changed


def check(part: str, group: Any) -> None:
    """Raise SettingsError when a field of the group breaks its bounds."""
    for name, value, each in each_of({part: group}):
        minimum, maximum, choices = (each.metadata.get(key) for key in ("minimum", "maximum", "choices"))
        if minimum is not None and value < minimum:
            raise SettingsError(f"{name} is {value}; it must be at least {minimum}")
        if maximum is not None and value > maximum:
            raise SettingsError(f"{name} is {value}; it must be at most {maximum}")
        if choices and value not in choices:
            raise SettingsError(f"{name} is {value!r}; it must be one of {', '.join(choices)}")


def as_text(value: Any) -> str:
    """A setting's value as `override` reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def describe(parts: Mapping[str, Any]) -> str:
    """A line per setting, for the help text of a command line."""
    return "\n".join(f"  {name}={value}: {each.metadata.get('help', '')}" for name, value, each in each_of(parts))


def _parse(name: str, text: str, present: Any) -> Any:
    try:
        if isinstance(present, bool):
            return _TRUE[text.lower()]
        return type(present)(text)
    except (KeyError, ValueError) as error:
        kind = "true or false" if isinstance(present, bool) else f"a {type(present).__name__}"
        raise SettingsError(f"--set {name}={text}: the value must be {kind}") from error
