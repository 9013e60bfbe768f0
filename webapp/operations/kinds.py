"""What a kind of change is; `webapp.operations.registry` lists those that the console can make.

A kind says who may ask for it, which rules its parameters obey, what it would do (`plan`) and who does it:
- the worker: neither `record` nor `inline` is given; the task `tasks.operations.run` gets the operation's id and dispatches on
  the kind;
- the console's own tables: `record`, in the same transaction as the audit row;
- the web process after the transaction: `inline`, for what is short and wanted at once (a test message).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from webapp.accounts.permissions import Actor

Parameters = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Done:
    """What a kind that is carried out by the web process has to say. `once` is shown now and never stored (a token's secret)."""

    result: Any = None
    once: dict[str, str] = field(default_factory=dict)


def without_password(parameters: Parameters) -> Parameters:
    """What of the parameters is kept: no secret."""
    return {name: value for name, value in parameters.items() if name != "password"}


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of change."""

    name: str
    title: str
    permission: str
    validate: Callable[[Actor, Parameters], Parameters]
    plan: Callable[[Parameters], list[dict[str, str]]] = lambda parameters: []
    target: tuple[str, ...] = ("name",)  # the parameters that together name what is changed
    record: Callable[[Actor, Parameters], Done] | None = None
    inline: Callable[[Actor, Parameters], Done] | None = None
    audited: Callable[[Parameters], Parameters] = lambda parameters: parameters  # what of them is stored
    is_dangerous: bool = False  # a person at a browser gives the password again, when that is long ago

    def target_of(self, parameters: Parameters) -> str:
        """What is changed, as pages and the audit trail name it."""
        return "/".join(str(parameters[name]) for name in self.target)

    @property
    def by_worker(self) -> bool:
        return self.record is None and self.inline is None
