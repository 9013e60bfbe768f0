"""Known weaknesses of what is locked: python -m tests.audit [--url URL].

pip-audit asks a database (OSV's, or one with its interface that `--url` names) for each version of requirements-dev.lock. Exit
code 0: it knows nothing of them; 1: it does; 3: no database answered, so nothing is known either way.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

LOCK = Path(__file__).resolve().parents[1] / "requirements-dev.lock"
CLEAN, WEAK, UNKNOWN = 0, 1, 3

_ANSWER_TIMEOUT_S = 15
_RUN_TIMEOUT_S = 900


def main(arguments: Sequence[str]) -> int:
    """Run as a program; return the exit code."""
    parser = argparse.ArgumentParser(prog="tests.audit")
    parser.add_argument("--url", help="a database with OSV's interface (default: OSV's own)")
    url = parser.parse_args(arguments).url
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--require-hashes", "--disable-pip"),
                *("--vulnerability-service", "osv", "--format", "json", "--progress-spinner", "off"),
                *("--timeout", str(_ANSWER_TIMEOUT_S), *(("--osv-url", url) if url else ())),
            ],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_RUN_TIMEOUT_S,
            check=False,
        )
        code, lines = verdict(done.stdout, done.stderr)
    except subprocess.TimeoutExpired:
        code, lines = verdict("", f"it took more than {_RUN_TIMEOUT_S} s")
    print("\n".join(lines))
    return code


def verdict(found: str, said: str) -> tuple[int, list[str]]:
    """The exit code and what to tell. `found` is pip-audit's JSON, empty when it failed; `said` what it said beside."""
    try:
        packages: list[dict[str, Any]] = orjson.loads(found)["dependencies"]
    except ValueError:
        reason = (said.strip().splitlines() or ["pip-audit said nothing"])[-1]
        return UNKNOWN, [f"audit: no database of weaknesses answered, so nothing is known of what is locked ({reason})"]
    skipped = [
        f"audit: {each['name']} was not looked up: {each['skip_reason']}" for each in packages if "skip_reason" in each
    ]
    weak = [
        f"audit: {each['name']} {each['version']}: {one['id']}, mended in {' or '.join(one['fix_versions']) or 'no version'}"
        for each in packages
        for one in each.get("vulns", ())
    ]
    if weak or skipped:
        return WEAK if weak else UNKNOWN, [*skipped, *weak]
    return CLEAN, [f"audit: of {len(packages)} packages the database knows no weakness"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
