"""Rules that lose messages, put in place of ours for the length of a story: a harness that does not find them proves nothing.

Here is what a mutant is and in which stories it is looked for; the mutants themselves are the `MUTANTS` of the modules
`*_mutants.py` beside this one, and `registry` has them all. Nothing here is reachable from the daemons: a mutant replaces
attributes of our classes while it is entered.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest

from brokerd.replication.settings import ReplicationSettings
from remoting.errors import CorruptedFile
from tests.sim.cluster import SimCluster, Story
from tests.sim.light import STEPS, LightStory
from tests.sim.rotting import RotStory

Tell = Callable[[int], None]  # the story of a seed; raises AssertionError, which a Violation is, when a promise broke

# What a replacement of ours raises when it does not fit what it replaces: that would be found in every story, and prove nothing.
_DOES_NOT_FIT = (TypeError, AttributeError, NameError)


class DoesNotFit(Exception):
    """A mutant is out of date: the code that it replaces has changed."""


@dataclass(frozen=True)
class Mutant:
    """`patches` are (owner, attribute, replacement). It is looked for `within` that many stories, from seed `first` on.

    One that is found late begins with the seed that found it last: the stories before it would only take time.

    `window` is what it opens: an id of the table in docs/RELIABILITY.md, or the name of something that is not in it. A quick one
    is looked for in every run of the tests.
    """

    name: str
    window: str
    what: str
    patches: tuple[tuple[Any, str, Any], ...]
    tell: Tell
    within: int = 400
    first: int = 0
    is_quick: bool = True

    def find(self) -> tuple[int, str] | None:
        """The first seed whose story breaks a promise, and which."""
        with self.entered():
            for seed in range(self.first, self.first + self.within):
                try:
                    self.tell(seed)
                except AssertionError as error:
                    if isinstance(error.__cause__, _DOES_NOT_FIT):
                        raise DoesNotFit(f"{self.name}: {error}") from error
                    return seed, str(error) or repr(error)
        return None

    def breaks_anyhow(self, seed: int) -> str:
        """The promise that the story of the seed breaks while no rule is broken; "" = it keeps them all. A story that does would
        find every mutant. Where a setting of the story is what is broken, there is none without it."""
        if not self.patches:
            return ""
        try:
            self.tell(seed)
        except AssertionError as error:
            return str(error) or repr(error)
        return ""

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for owner, attribute, replacement in self.patches:
                stack.enter_context(patch.object(owner, attribute, replacement))
            yield


def light(
    *,
    heals: bool | None = None,
    steps: int = STEPS,
    weights: dict[str, float] | None = None,
    settings: ReplicationSettings | None = None,
    learners: frozenset[int] = frozenset(),
    ends_without_one: bool = False,
) -> Tell:
    """Light stories, which judge by outcomes alone: a rule that makes losses impossible is not what is looked for."""

    def tell(seed: int) -> None:
        LightStory(
            seed,
            heals=heals,
            only_outcomes=True,
            settings=settings,
            steps=steps,
            weights=weights or {},
            learners=learners,
            ends_without_one=ends_without_one,
        ).run()

    return tell


def full(
    mood: str,
    *,
    settings: ReplicationSettings | None = None,
    fault_ms: float = 3000,
    ingredients: tuple[str, ...] = (),
    without_clients: tuple[str, ...] = (),
    **more: Any,
) -> Tell:
    """Stories of whole clusters, in one mood, with these ingredients, without these clients, and with what else `Story` has."""

    def tell(seed: int) -> None:
        story = Story(seed, mood, fault_ms, frozenset(ingredients), without_clients=frozenset(without_clients), **more)
        SimCluster(story, settings=settings).run()

    return tell


def rotting() -> Tell:
    """Light stories of disks that rot."""

    def tell(seed: int) -> None:
        RotStory(seed).run()

    return tell


def scenario(test: Callable[..., object], *arguments: object) -> Tell:
    """One story without chance, a test of the broken rule: for windows that lose nothing by themselves, which others lean on,
    and for those that open in the middle of something that a story does in one step."""
    name = getattr(test, "__name__", "the test")

    def tell(_seed: int) -> None:
        try:
            outcome = test(*arguments)
            if inspect.iscoroutine(outcome):
                asyncio.run(outcome)
        except pytest.fail.Exception as error:  # nothing was raised where something had to be
            raise AssertionError(f"{name}: {error}") from error
        except CorruptedFile as error:  # a start refuses what the rule would have kept whole
            raise AssertionError(f"{name}: {error}") from error
        except AssertionError as error:
            raise AssertionError(f"{name} does not hold {error}".rstrip()) from error.__cause__

    return tell


def patched_scenario(test: Callable[[pytest.MonkeyPatch], object]) -> Tell:
    """The same of a test that puts something of its own in place, and takes it back."""

    def tell(seed: int) -> None:
        with pytest.MonkeyPatch.context() as patches:
            scenario(test, patches)(seed)

    return tell
