"""Small files of JSON with a checksum among their fields: `check` is the CRC-32 of the JSON of a value, sorted and without blanks
(pure)"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Final

import orjson

CHECK: Final = "check"


def encode(fields: Mapping[str, object], checked: object) -> bytes:
    """The fields, and the checksum of this value."""
    return orjson.dumps({**fields, CHECK: check_of(checked)})


def check_of(value: object) -> int:
    """What has to stand in `check` for the value."""
    return zlib.crc32(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
