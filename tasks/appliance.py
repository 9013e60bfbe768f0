"""The appliance that a worker belongs to: what its supervisor runs, what is wanted of its broker groups, and its tier."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from remoting.errors import LogboomError
from remoting.tier.object_stores import StorePlace
from tasks.tier.objects import Objects
from tasks.tier.settings import tier_place
from webapp.appliance import state
from webapp.appliance.layout import DataLayout
from webapp.appliance.place import PROJECT_DIR

_RELEASE_S: Final = 50.0  # it watches a lease that was not laid down for 30 s
_LONGEST: Final = 500
_ANSWER_MS: Final = 5_000  # an operation that only looks ends before its worker's time does


class NotReleased(LogboomError):
    """The group's lease is not given back; the text says why."""


class Appliance:
    """`place` is its tier; None without one."""

    def __init__(self, layout: DataLayout, place: StorePlace | None) -> None:
        self.layout = layout
        self.place = place

    @classmethod
    def here(cls) -> Appliance:
        """That of this process."""
        from django.conf import settings

        return cls(settings.ENVIRONMENT.data, tier_place(os.environ))

    @property
    def wishes(self) -> Path:
        """Where it is said what is wanted of its groups."""
        return self.layout.groups

    def brokers(self) -> Sequence[Mapping[str, Any]]:
        """The processes of broker groups as the supervisor published them last, mounts too; none when no supervisor runs."""
        published = state.read(self.layout)
        return [each for each in published["processes"] if each.get("group")] if published is not None else []

    def objects(self, cluster: str, group: str) -> Objects:
        """What the group has in the tier, which there has to be. Raises SettingsError."""
        assert self.place is not None, "asked for a tier that there is not"
        return Objects.open(self.place._replace(request_timeout_ms=_ANSWER_MS), cluster, group)

    def release(self, cluster: str, group: str) -> str:
        """Give the group's lease back, as its mount did not go on; a sentence. Raises NotReleased."""
        assert self.place is not None, "asked for a tier that there is not"
        argv = [sys.executable, "-m", "brokerd", "--cluster", cluster, "--name", group, "--release-mount"]
        argv += ["--set", f"tiers.url={self.place.url}"]
        if self.place.options_path:
            argv += ["--set", f"tiers.options_path={self.place.options_path}"]
        try:
            ended = subprocess.run(
                argv, cwd=PROJECT_DIR, capture_output=True, text=True, timeout=_RELEASE_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotReleased(f"it did not come to an end: {error}"[:_LONGEST]) from error
        if ended.returncode != 0:
            said = [line for line in ended.stderr.splitlines() if line.strip()]
            raise NotReleased(
                (said[-1].removeprefix("brokerd: ") if said else f"exit code {ended.returncode}")[:_LONGEST]
            )
        return ended.stdout.strip()[:_LONGEST]
