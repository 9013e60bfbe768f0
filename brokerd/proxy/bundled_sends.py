"""A replica's side of sends that it forwards together (`bundles.py`): which of them are not answered yet (pure)."""

from __future__ import annotations

from collections.abc import Iterable

from brokerd.proxy.bundles import SENDS, BundledAnswer, Outcome, decode_answers, encode_calls
from brokerd.proxy.forwarded_call import MORE_FIELD
from brokerd.proxy.held_calls import Held
from brokerd.proxy.proxy_call import ProxyCall
from remoting.errors import ProtocolError
from remoting.frame import Command

_NO_ANSWER = "the master gave no answer"


class BundledSends:
    """`left` has what was not answered, by the ids of the calls; its messages take `size_bytes`."""

    def __init__(self, bundle_id: int, sends: Iterable[tuple[ProxyCall, Held[str]]]) -> None:
        self.left = {origin.call_id: (origin, held) for origin, held in sends}
        self.size_bytes = sum(len(held.call.message) for _, held in self.left.values())
        self._bundle_id = bundle_id

    def request(self) -> tuple[dict[str, str], bytes]:
        """The header's fields and the body of the request that forwards them."""
        body = encode_calls((origin, held.call.message) for origin, held in self.left.values())
        return ProxyCall(SENDS, self._bundle_id).to_ext(), body

    def timeout_ms(self, default_ms: int) -> int:
        """How long the clients of what is left wait; `default_ms` who does not say."""
        return max(origin.timeout_ms or default_ms for origin, _ in self.left.values())

    def take(self, response: Command) -> list[tuple[BundledAnswer, Held[str]]]:
        """What the master answered, and with what; all that is left when that cannot be read, or no more is to come."""
        before = len(self.left)
        found = []
        try:
            for answer in decode_answers(bytes(response.body)):
                if answer.call_id in self.left:
                    found.append((answer, self._take(answer.call_id)))
            text = _NO_ANSWER
        except ProtocolError as error:
            text = str(error)
        if MORE_FIELD not in response.ext or len(self.left) == before:
            failed = [BundledAnswer(each, Outcome.FAILED, text.encode()) for each in self.left]
            found += [(answer, self._take(answer.call_id)) for answer in failed]
        return found

    def take_all(self) -> list[tuple[ProxyCall, Held[str]]]:
        """All that is left."""
        left = list(self.left.values())
        self.left.clear()
        self.size_bytes = 0
        return left

    def _take(self, call_id: int) -> Held[str]:
        _, held = self.left.pop(call_id)
        self.size_bytes -= len(held.call.message)
        return held
