"""Where the program lies: in a checkout, or installed among other packages. What follows from that stands here.

A checkout is run by its `manage.py` and keeps its data below itself. What pip installed is run by the command `logboom`; its data
lie in the user's data directory, since nothing is written beside installed packages.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

PROJECT_DIR = Path(__file__).resolve().parents[2]
"""What holds our packages."""

IS_CHECKOUT = (PROJECT_DIR / "manage.py").is_file()
COMMAND = "manage.py" if IS_CHECKOUT else "logboom"
"""What people call this program by."""
SHELL_COMMAND = "python manage.py" if IS_CHECKOUT else "logboom"
"""What they type."""


def user_data_dir(variables: Mapping[str, str], home: Path) -> Path:
    """Where an installed appliance keeps its data: where programs of this user keep theirs (XDG_DATA_HOME)."""
    named = Path(variables.get("XDG_DATA_HOME", ""))
    # the rule for the variable: what is not absolute counts as absent
    return (named if named.is_absolute() else home / ".local" / "share") / "logboom"


DEFAULT_DATA_DIR = PROJECT_DIR / "data" if IS_CHECKOUT else user_data_dir(os.environ, Path.home())
