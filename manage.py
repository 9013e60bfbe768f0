#!/usr/bin/env python
"""The commands of a checkout: `webapp.appliance.command`. Started with a Python that lacks the packages, it goes on with the
one in .venv.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path


def main() -> None:
    """Run the command that the arguments name."""
    if importlib.util.find_spec("django") is None:
        use_venv()
    from webapp.appliance.command import main as command

    command()


def use_venv() -> None:
    """Start again with the Python that `make up` has set up."""
    python = Path(__file__).resolve().parent / ".venv" / "bin" / "python"
    if not python.exists() or Path(sys.prefix) == python.parents[1]:
        sys.exit("manage.py: the packages that Logboom needs are not installed; run `make up` once, it installs them")
    os.execv(python, [str(python), *sys.argv])


if __name__ == "__main__":
    main()
