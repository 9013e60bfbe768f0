"""Bring the console's database to the present version and make the first admin: `python -m webapp.appliance.prepare`.

A process of its own, started by `up` beside the daemons, so that the supervisor stays small and needs no database. It
answers with one JSON object on standard output; what goes wrong is said on standard error and by the exit code.

    {"admin": null | {"name": "admin", "password": "..."}}
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import django
from django.core.exceptions import ValidationError
from django.core.management import call_command

from webapp.appliance import environment, secret_files
from webapp.appliance.environment import Environment


def prepare() -> dict[str, Any]:
    """Migrate, then make sure that somebody can log in and that the command line has its token."""
    call_command("migrate", interactive=False, verbosity=0)
    from webapp.accounts.services import ensure_admin  # models can be imported only now

    read = Environment.read(os.environ)
    try:
        admin = ensure_admin(os.environ.get(environment.ADMIN_PASSWORD) or None)
    except ValidationError as error:
        raise SystemExit(
            f"{environment.ADMIN_PASSWORD} cannot be the first password: {' '.join(error.messages)}"
        ) from error
    ensure_cli_token(read.data.cli_token_file)
    return {"admin": None if admin is None else {"name": admin[0], "password": admin[1]}}


def ensure_cli_token(path: Path) -> None:
    """Keep a token for the command line in the file."""
    from webapp.accounts.services import new_cli_token

    if (token := new_cli_token(path.read_text().strip() if path.exists() else "")) is not None:
        secret_files.write(path, token)


def main() -> None:
    """Run as a program."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    django.setup()
    json.dump(prepare(), sys.stdout)


if __name__ == "__main__":
    main()
