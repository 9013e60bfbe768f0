"""The limit on attempts to log in: per person and address, and per address.

An attempt is counted before the password is looked at, so parallel guesses cannot slip past; a success takes its own attempt and
the person's earlier ones from that address back out.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from webapp.accounts.models import LoginAttempt
from webapp.errors import TooMany

WINDOW = timedelta(minutes=15)
PER_USER_AND_IP = 5
PER_IP = 30
KEPT = timedelta(days=1)


def begin(username: str, ip: str) -> LoginAttempt:
    """Count an attempt; raises TooMany, with the time when the next one is allowed, when there were too many failed ones."""
    username = username.strip().lower()[:150]
    with transaction.atomic():
        now = timezone.now()
        _check(LoginAttempt.objects.filter(username=username, ip=ip), PER_USER_AND_IP, now)
        _check(LoginAttempt.objects.filter(ip=ip), PER_IP, now)
        LoginAttempt.objects.filter(at__lt=now - KEPT).delete()
        return LoginAttempt.objects.create(username=username, ip=ip, at=now)


def succeeded(attempt: LoginAttempt) -> None:
    """The password was right."""
    LoginAttempt.objects.filter(username=attempt.username, ip=attempt.ip, at__lte=attempt.at).update(succeeded=True)


def _check(attempts, limit: int, now: datetime) -> None:  # type: ignore[no-untyped-def]
    failed = attempts.filter(succeeded=False, at__gt=now - WINDOW).order_by("-at")
    times = list(failed.values_list("at", flat=True)[:limit])
    if len(times) < limit:
        return
    again = times[-1] + WINDOW
    wait_s = max(1, int((again - now).total_seconds()) + 1)
    minutes = -(-wait_s // 60)
    raise TooMany(
        f"Too many failed attempts. Try again at {again:%H:%M:%S} UTC (in {minutes} minute{'s' if minutes > 1 else ''}).",
        retry_after_s=wait_s,
    )
