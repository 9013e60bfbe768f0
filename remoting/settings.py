"""Settings of the daemons: small frozen dataclasses, each field described and bounded where it is declared, checked at start.

A daemon's command line changes one with `--set part.key=value`; the same table makes its help text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from typing import Any

from remoting.errors import SettingsError

_TRUE = {"true": True, "false": False}


def setting(
    default: Any,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] = (),
) -> Any:
    """Declare a field: its default, a sentence for people, and what it may be."""
    metadata = {"help": help, "minimum": minimum, "maximum": maximum, "choices": tuple(choices)}
    return field(default=default, metadata=metadata)


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
            known = ", ".join(f"{part}.{each.name}" for part, group in parts.items() for each in fields(group))
            raise SettingsError(f"--set {assignment!r}: there is no setting {name}; there are {known}")
        changed[part] = replace(changed[part], **{key: _parse(name, text, getattr(changed[part], key))})
    for part, group in changed.items():
        check(part, group)
    return changed


def check(part: str, group: Any) -> None:
    """Raise SettingsError when a field of the group breaks its bounds."""
    for each in fields(group):
        value = getattr(group, each.name)
        minimum, maximum, choices = (each.metadata.get(key) for key in ("minimum", "maximum", "choices"))
        if minimum is not None and value < minimum:
            raise SettingsError(f"{part}.{each.name} is {value}; it must be at least {minimum}")
        if maximum is not None and value > maximum:
            raise SettingsError(f"{part}.{each.name} is {value}; it must be at most {maximum}")
        if choices and value not in choices:
            raise SettingsError(f"{part}.{each.name} is {value!r}; it must be one of {', '.join(choices)}")


def as_text(value: Any) -> str:
    """A setting's value as `override` reads it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def describe(parts: Mapping[str, Any]) -> str:
    """A line per setting, for the help text of a command line."""
    return "\n".join(
        f"  {part}.{each.name}={getattr(group, each.name)}: {each.metadata.get('help', '')}"
        for part, group in parts.items()
        for each in fields(group)
    )


def _parse(name: str, text: str, present: Any) -> Any:
    try:
        if isinstance(present, bool):
            return _TRUE[text.lower()]
        return type(present)(text)
    except (KeyError, ValueError) as error:
        kind = "true or false" if isinstance(present, bool) else f"a {type(present).__name__}"
        raise SettingsError(f"--set {name}={text}: the value must be {kind}") from error
