"""The commands for people and scripts: Django's, and `up`, `status` and `secure` of the appliance.

Called by `manage.py` in a checkout, and by the command `logboom` where pip installed it. Those three run before and without
Django: `up` decides on the data directory that the settings then read, and the others must answer while the console is down.
"""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command that the arguments name."""
    command = sys.argv[1] if len(sys.argv) > 1 else "help"
    if command == "up":
        from webapp.appliance.up import main as up

        sys.exit(up(sys.argv[2:]))
    if command == "status":
        from webapp.appliance.status import main as status

        sys.exit(status(sys.argv[2:]))
    if command == "secure":
        from webapp.appliance.secure import main as secure

        sys.exit(secure(sys.argv[2:]))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    from django.core.management import execute_from_command_line

    from webapp.appliance.state import find_running

    for name, value in find_running(os.environ).items():
        os.environ.setdefault(name, value)
    execute_from_command_line(sys.argv)
