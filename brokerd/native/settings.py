"""Settings of the broker's inner loops (`--set kernel.key=value`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from remoting.settings import check, setting

AUTO: Final = "auto"
PYTHON: Final = "python"
NATIVE: Final = "native"


@dataclass(frozen=True, slots=True)
class KernelSettings:
    """Whether loops over messages run in C or in Python; what they do is the same."""

    mode: str = setting(
        AUTO,
        "where loops over messages run: native (compiled on this machine), python, or auto: native where that works",
        choices=(AUTO, PYTHON, NATIVE),
    )

    def __post_init__(self) -> None:
        check("kernel", self)
