"""`python -m brokerd.native`: build the native library, so that brokers only load it. Exit code 1, and why, where that fails."""

from __future__ import annotations

import sys

from brokerd.native.building import CannotBuild
from brokerd.native.library import load


def main() -> int:
    try:
        library = load()
    except CannotBuild as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{library.path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
