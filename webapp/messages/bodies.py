"""Showing a message's body truthfully: as text, hexadecimal or JSON, with its encoding and whether it was cut (pure).

A stored body may be compressed. It is unpacked up to a limit, never beyond: a small message can unpack to gigabytes.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass

from remoting.record.compression import compression, unpack

SHOWN_BYTES = 64 * 1024
PREVIEW_CHARACTERS = 120
HEX_WIDTH = 16
HEX_SHOWN_BYTES = 16 * 1024


@dataclass(frozen=True, slots=True)
class Body:
    """A body ready to be shown. `content` is at most the limit; `truncated` says that there is more of it."""

    content: bytes
    stored_bytes: int
    compression: str
    truncated: bool
    problem: str = ""

    @property
    def encoding(self) -> str:
        """The encoding in which the content can be read as text: UTF-8, or binary when it is none."""
        return "utf-8" if self.utf8 is not None else "binary"

    @property
    def base64(self) -> str:
        return base64.b64encode(self.content).decode("ascii")

    def text(self) -> str:
        """The content as text; bytes that are not UTF-8 show as the replacement character."""
        return self.utf8 if self.utf8 is not None else self.content.decode("utf-8", "replace")

    def json(self) -> str | None:
        """The content laid out as JSON, or None when it is none (or was cut)."""
        found = self.utf8
        if found is None or self.truncated or not found.strip() or found.strip()[0] not in '{["':
            return None
        try:
            return json.dumps(json.loads(found), indent=2, ensure_ascii=False)
        except (ValueError, RecursionError):
            return None

    def hex(self) -> str:
        """A hexadecimal dump: offset, bytes, characters."""
        lines = []
        shown = self.content[:HEX_SHOWN_BYTES]
        for start in range(0, len(shown), HEX_WIDTH):
            row = shown[start : start + HEX_WIDTH]
            pairs = " ".join(f"{byte:02x}" for byte in row)
            characters = "".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row)
            lines.append(f"{start:08x}  {pairs:<{HEX_WIDTH * 3 - 1}}  {characters}")
        return "\n".join(lines)

    def preview(self) -> str:
        """The beginning, on one line."""
        if self.problem:
            return self.problem
        start = self.content[: PREVIEW_CHARACTERS * 4]
        found = self.utf8
        if found is None:
            return " ".join(f"{byte:02x}" for byte in start[:40])
        line = " ".join(found[: PREVIEW_CHARACTERS * 4].split())
        return line[:PREVIEW_CHARACTERS] + ("…" if len(line) > PREVIEW_CHARACTERS else "")

    @property
    def utf8(self) -> str | None:
        """The content as UTF-8 text; None when it is none."""
        content = self.content
        if self.truncated:  # the cut may be inside of a character
            for cut in range(4):
                try:
                    return content[: len(content) - cut].decode("utf-8")
                except UnicodeDecodeError:
                    continue
            return None
        try:
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            return None
        return None if "\x00" in text else text


def open_body(stored: bytes, sys_flag: int, limit: int = SHOWN_BYTES) -> Body:
    """The body of a record, unpacked if it is compressed."""
    compressed = compression(sys_flag)
    if compressed is None:
        return Body(stored[:limit], len(stored), "none", len(stored) > limit)
    try:
        content = unpack(stored, sys_flag, limit + 1)
    except ValueError as error:
        problem = f"cannot be unpacked as {compressed}: {error}"
        return Body(stored[:limit], len(stored), compressed, len(stored) > limit, problem)
    return Body(content[:limit], len(stored), compressed, len(content) > limit)
