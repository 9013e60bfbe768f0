"""Numbers of a command line, within their bounds."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def bounded(least: int, most: int) -> Callable[[str], int]:
    """What reads one: a type for argparse."""

    def number(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least} to {most}")
        return int(text)

    return number
