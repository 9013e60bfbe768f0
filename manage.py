#!/usr/bin/env python
"""The entry point for people and scripts: Django's commands, and `up` and `status` of the appliance.

Those two run before and without Django: `up` decides on the data directory that the settings then read, and `status` must
answer while the console is down. Started with a Python that lacks the packages, it goes on with the one in .venv.
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
    command = sys.argv[1] if len(sys.argv) > 1 else "help"
    if command == "up":
        from webapp.appliance.up import main as up

        sys.exit(up(sys.argv[2:]))
    if command == "status":
        from webapp.appliance.status import main as status

        sys.exit(status(sys.argv[2:]))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    from django.core.management import execute_from_command_line

    from webapp.appliance.state import find_running

    for name, value in find_running(os.environ).items():
        os.environ.setdefault(name, value)
    execute_from_command_line(sys.argv)


def use_venv() -> None:
    """Start again with the Python that `make up` has set up."""
    python = Path(__file__).resolve().parent / ".venv" / "bin" / "python"
    if not python.exists() or Path(sys.prefix) == python.parents[1]:
        sys.exit("manage.py: the packages that Logboom needs are not installed; run `make up` once, it installs them")
    os.execv(python, [str(python), *sys.argv])


if __name__ == "__main__":
    main()
