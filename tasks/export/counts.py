"""What an export did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Counts:
    """Files and messages written, bytes of records in them, and files removed."""

    files: int = 0
    messages: int = 0
    bytes: int = 0
    removed: int = 0
