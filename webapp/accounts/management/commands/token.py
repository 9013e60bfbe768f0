"""`manage.py token create NAME --scope ...`: an API token, made in the console's database by whoever may read it."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from webapp.accounts.models import ApiToken, User
from webapp.accounts.permissions import PERMISSIONS, actor_for
from webapp.errors import Problem
from webapp.operations.services import submit


class Command(BaseCommand):
    help = "Create, list and revoke API tokens."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        create = actions.add_parser("create", help="make a token and print it; it is not shown again")
        create.add_argument("name", help="what it is for")
        scopes = f"one of {', '.join(PERMISSIONS)}; repeat for more"
        create.add_argument("--scope", action="append", required=True, metavar="SCOPE", help=scopes)
        create.add_argument("--user", default="admin", help="whose token (default: admin)")
        create.add_argument("--days", type=int, help="how long it is valid (default: 90, at most 366)")
        actions.add_parser("list", help="list tokens")
        revoke = actions.add_parser("revoke", help="end a token")
        revoke.add_argument("prefix", help="as `token list` shows it")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            getattr(self, options["action"])(options)
        except Problem as problem:
            raise CommandError(problem.detail, returncode=1) from problem

    def create(self, options: dict[str, Any]) -> None:
        parameters = {"name": options["name"], "scopes": options["scope"], "expires_in_days": options["days"]}
        submitted = submit(actor_for(self._user(options["user"]), ip="command line"), "token.create", parameters)
        self.stdout.write(submitted.once["token"])

    def list(self, options: dict[str, Any]) -> None:
        for token in ApiToken.objects.select_related("owner"):
            state = "revoked" if token.revoked_at else "valid"
            self.stdout.write(
                f"{token.prefix}\t{state}\t{token.owner.username}\t{token.name}\t{' '.join(token.scopes)}"
            )

    def revoke(self, options: dict[str, Any]) -> None:
        token = ApiToken.objects.filter(prefix=options["prefix"].removeprefix("lb_")).select_related("owner").first()
        if token is None:
            raise CommandError(f"There is no token {options['prefix']}.", returncode=1)
        submit(actor_for(token.owner, ip="command line"), "token.revoke", {"token_id": token.pk})
        self.stdout.write(f"revoked {token.prefix}")

    def _user(self, name: str) -> User:
        user = User.objects.filter(username=name, is_active=True).first()
        if user is None:
            raise CommandError(f"There is no active user {name}.", returncode=1)
        return user
