"""Beat: calls for the tasks that are due, by their names.

    python -m tasks.beat

It is Celery's program without the tasks themselves, which need the console's models, pyarrow and all that they import.
"""

from __future__ import annotations

from celery.apps.beat import Beat

from tasks.app import app


class NamesOnly(Beat):  # type: ignore[misc]
    """Celery's program, which loads no task: what is sent is a name with a queue."""

    def init_loader(self) -> None:
        """Instead of importing all modules of tasks."""
        self.app.finalize()


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    NamesOnly(app=app, loglevel="INFO").run()


if __name__ == "__main__":
    main()
