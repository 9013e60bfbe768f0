"""What clients measured, over REST."""

from __future__ import annotations

from remoting.facts.snapshot import ClientTimes
from webapp.api.facts import FactSerializer, told


class ClientTimesSerializer(FactSerializer):
    fact = ClientTimes
    help_texts = told(
        metric="send, delivery, await or process; of traces span_send, span_receive or span_process.",
        half_ms="Half of them took no longer; null when that is more than limit_ms.",
        most_ms="All but one in a hundred took no longer; null when that is more than limit_ms.",
        limit_ms="Longer times are not told apart.",
    )
