"""All mutants, and the runner that looks for each of them in processes of its own.

A module `*_mutants.py` of this package has the mutants of one subject, as `MUTANTS`.
"""

from __future__ import annotations

import importlib
import logging
import os
import pkgutil
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import Final, NamedTuple

from tests import sim
from tests.sim.mutants import Mutant

# Windows of docs/RELIABILITY.md that cannot be closed: there is no rule that could be broken.
CANNOT_BE_CLOSED: Final = frozenset({"W20", "W22"})


class Sought(NamedTuple):
    """How the search for one mutant ended: the seed and the promise, or None; what that story breaks without the mutant, which
    is then not found; and what the search cost."""

    name: str
    found: tuple[int, str] | None
    breaks_anyhow: str
    cpu_s: float

    @property
    def is_found(self) -> bool:
        return self.found is not None and not self.breaks_anyhow


def _all_mutants() -> Iterator[Mutant]:
    for module in pkgutil.iter_modules(sim.__path__):
        if module.name.endswith("_mutants"):
            yield from importlib.import_module(f"{sim.__name__}.{module.name}").MUTANTS


MUTANTS: Final[tuple[Mutant, ...]] = tuple(_all_mutants())


def find_all(names: Sequence[str] = ()) -> int:
    """Look for all mutants, or those of these names; print each as it is found. How many were not."""
    chosen = [each for each in MUTANTS if not names or each.name in names]
    unknown = set(names) - {each.name for each in chosen}
    assert not unknown, f"there are no mutants {sorted(unknown)}"
    found = 0
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        # Those that take long begin first, so that the end does not wait for one of them.
        searches = [pool.submit(_seek, each.name) for each in sorted(chosen, key=lambda each: each.is_quick)]
        for search in as_completed(searches):
            sought = search.result()
            found += sought.is_found
            _print(sought)
    print(f"{found} of {len(chosen)} mutants found")
    return len(chosen) - found


def _seek(name: str) -> Sought:
    """In a process of its own."""
    logging.disable(logging.CRITICAL)
    (mutant,) = (each for each in MUTANTS if each.name == name)
    began = time.process_time()
    found = mutant.find()
    took_s = time.process_time() - began
    return Sought(name, found, mutant.breaks_anyhow(found[0]) if found is not None else "", took_s)


def _print(sought: Sought) -> None:
    (mutant,) = (each for each in MUTANTS if each.name == sought.name)
    outcome = f"NOT FOUND in {mutant.within} stories"
    if sought.found is not None:
        seed, promise = sought.found
        outcome = f"seed {seed}: {promise}"
    if sought.breaks_anyhow:
        outcome = f"NOT FOUND by this story, which breaks a promise without it: {sought.breaks_anyhow}"
    print(f"{mutant.window:4} {mutant.name:34} {sought.cpu_s:6.1f} s  {outcome[:200]}", flush=True)
