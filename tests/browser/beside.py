"""Beside the console, a process of its own: runs what it reads, a JSON text a line, with Django set up, as a worker would.

    python -m tests.browser.beside

Each answer is a line with what the code printed. Code that fails ends the process.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys

import django


def main() -> None:
    django.setup()
    for line in sys.stdin:
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(json.loads(line), {})
        print(json.dumps(said.getvalue()), flush=True)


if __name__ == "__main__":
    main()
