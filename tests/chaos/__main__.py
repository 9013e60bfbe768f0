"""Real processes in network namespaces, under faults.

    python -m tests.chaos [--only "C1 X3"] [--seed N] [--fault-s S] [--heal-s S] [--rounds N] [--report DIRECTORY]
                          [--set PART.KEY=VALUE] [--pause-s S]

Each scenario starts a cluster of its own (see docs/RELIABILITY.md), puts clients on it, injects its faults, heals them, and holds
what everybody saw against K1 to K10. Prints a table; writes report.json and timeline.html. Exit codes: 0 passed, 1 failed, 2 this
machine cannot do it.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path

from tests.chaos.diskfault import why_not as why_no_shims
from tests.chaos.namespaces import why_not
from tests.chaos.report import document_of, summary, table
from tests.chaos.run import Options, Played, play_all
from tests.chaos.scenarios import chosen
from tests.chaos.timeline import page


def main(arguments: list[str]) -> int:
    """Run; the result is the exit code."""
    default = Options()
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help="ids of scenarios; short for those of every test run; all without it"
    )
    parser.add_argument("--seed", type=int, default=default.seed, help="draws the faults (%(default)s)")
    parser.add_argument("--fault-s", type=float, default=default.fault_s, help="length of a fault (%(default)s)")
    parser.add_argument("--heal-s", type=float, default=default.heal_s, help="time after a heal (%(default)s)")
    parser.add_argument("--rounds", type=int, default=default.rounds, help="faults of each scenario (%(default)s)")
    parser.add_argument("--set", action="append", default=[], metavar="PART.KEY=VALUE", help="a setting of all brokers")
    parser.add_argument(
        "--pause-s", type=float, default=default.pause_s, help="between two sends of a producer (%(default)s)"
    )
    parser.add_argument("--report", type=Path, default=Path("chaos-report"), help="where the report goes (%(default)s)")
    chosen_options = parser.parse_args(arguments)
    try:
        scenarios = chosen(chosen_options.only)
    except ValueError as error:
        parser.error(str(error))
    if reason := why_not():
        print(f"chaos: {reason}", file=sys.stderr)
        return 2
    skipped: dict[str, str] = {}
    if any(each.preloads for each in scenarios) and (reason := why_no_shims()):
        skipped = {each.id: reason for each in scenarios if each.preloads}
        scenarios = [each for each in scenarios if not each.preloads]
        print(f"chaos: {', '.join(skipped)} cannot be played here: {reason}", file=sys.stderr)
        if not scenarios:
            return 2
    signal.signal(signal.SIGTERM, _stop)  # so that what was made is removed then too
    options = Options(
        chosen_options.fault_s,
        chosen_options.heal_s,
        chosen_options.rounds,
        chosen_options.seed,
        tuple(chosen_options.set),
        chosen_options.pause_s,
    )
    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    report: Path = chosen_options.report
    report.mkdir(parents=True, exist_ok=True)
    played: list[Played] = []
    for each in play_all(scenarios, options, report / "logs", lambda line: print(line, flush=True)):
        played.append(each)
        # after each scenario: a run that is stopped leaves what it had
        document = document_of(played, options, started) | {"skipped": skipped}
        (report / "report.json").write_text(json.dumps(document, indent=1) + "\n")
        (report / "timeline.html").write_text(page(document))
    document = document_of(played, options, started)
    print(f"\n{table(each.verdict for each in played)}\n")
    total = summary(document)
    print(
        f"{total['passed']} of {total['scenarios']} scenarios passed; {total['faults']} faults; {total['acknowledged']:,} of "
        f"{total['operations']:,} sends acknowledged, {total['lost']} lost; report in {report}"
        + (f"; {len(skipped)} could not be played here" if skipped else "")
    )
    return 0 if total["passed"] == total["scenarios"] else 1


def _stop(*_: object) -> None:
    sys.exit(143)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
