"""Parts of records that are laid out in bulk, for IPv4 hosts: an address and its port are eight bytes, packed (pure)."""

from __future__ import annotations

import struct
from typing import Final

# Everything before the body, as `layout.HEAD_V4`
HEAD: Final = struct.Struct(">IIIiiqqiq8sq8siqi")
# Its middle, which all messages of a batch share: sysFlag to preparedTransactionOffset
SHARED: Final = struct.Struct(">iq8sq8siq")
# Everything before the body around that middle
HEAD_AROUND_SHARED: Final = struct.Struct(f">IIIiiqq{SHARED.size}si")
SIZE_AND_MAGIC: Final = struct.Struct(">II")
SHORT: Final = struct.Struct(">h")
