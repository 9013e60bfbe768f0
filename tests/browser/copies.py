"""The console's programs for `tests.support.forked`: it is imported, with all pages, before a copy of it answers requests.

    main: `prepare`, or `daphne` with the arguments of its command line

The copies share what the event loop of Twisted opened when it was imported, so only one serves at a time.
"""

from __future__ import annotations

import sys

import django

django.setup()  # models can be imported only afterwards

from django.urls import get_resolver  # noqa: E402

import webapp.asgi  # noqa: E402, F401  (what daphne is told to serve)
from webapp.appliance import prepare  # noqa: E402
from webapp.serving import ConsoleServer  # noqa: E402

_ = get_resolver().url_patterns  # the first request would import the views


def main() -> int:
    """Run as the program that the first argument names."""
    match sys.argv[1:]:
        case ["prepare"]:
            prepare.main()
        case ["daphne", *arguments]:
            ConsoleServer().run(arguments)
        case others:
            raise AssertionError(f"{others}: there is no such program")
    return 0
