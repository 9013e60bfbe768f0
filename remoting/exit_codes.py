"""How a daemon's process ended, for whoever supervises it (systemd: `RestartPreventExitStatus=3`)."""

from __future__ import annotations

from typing import Final

STOPPED: Final = 0  # it was told to
FAILED: Final = 1  # its log says why; another start may help
REFUSED: Final = 2  # it cannot start as it is set up
NOT_NEEDED: Final = 3  # its group goes on without it for good: another start would end the same way
