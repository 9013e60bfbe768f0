"""Where a request of HTTP/1.1 begins and ends: what others could read differently is refused, and nothing behind it is looked at.

Somebody in front of the console (a proxy, a cache, what filters requests) reads the same bytes. Where the two could disagree on
where a request ends, whom it is for or what it asks, one of them would take a part of one request for another one. Twisted
refuses most of that itself. It joins folded lines, passes over `Transfer-Encoding: identity`, looks at no Host, takes any target,
and while TLS ends goes on reading a request that it has refused.
"""

from __future__ import annotations

from typing import Any, Final

from twisted.web.http import HTTPChannel

ROOT_PATH: Final = b"daphne-root-path"  # by which a proxy moves all addresses of the application; here no client does
_CODING: Final = b"chunked"


class StrictChannel(HTTPChannel):
    """One connection. Who makes it says how it is refused."""

    def refuse(self, status: int, text: str) -> None:
        """Say why, and drop whatever still comes."""
        raise NotImplementedError

    def lineReceived(self, line: bytes) -> None:
        """A line of a head."""
        if line[:1] in (b" ", b"\t"):
            self._refuse_head("A line of its head begins with a space or a tab: fields in several lines are not taken.")
        else:
            super().lineReceived(line)

    def allHeadersReceived(self) -> None:
        """The head of a request is there."""
        request = self.requests[-1]
        wrong = _wrong(self._path, self._version, request.requestHeaders)
        if wrong:
            self._refuse_head(wrong)
            return
        request.requestHeaders.removeHeader(ROOT_PATH)
        super().allHeadersReceived()

    def lineLengthExceeded(self, line: bytes) -> None:
        """What comes ends no line."""
        self._refuse_head(f"A line of its head is longer than {self.MAX_LENGTH} bytes.")

    def _respondToBadRequestAndDisconnect(self) -> None:
        self._refuse_head("It is not a request of HTTP/1.1, or where it ends is not clear.")

    def _refuse_head(self, text: str) -> None:
        self.refuse(400, f"The request is not taken. {text}\n")


def _wrong(target: bytes, version: bytes, headers: Any) -> str:
    """What is wrong with the head of a request; "" when nothing is."""
    hosts = headers.getRawHeaders(b"host", [])
    codings = headers.getRawHeaders(b"transfer-encoding", [])
    if not target.startswith(b"/"):
        return "What it asks for has to begin with /, as an address does behind the host."
    if len(hosts) > 1 or (not hosts and version == b"HTTP/1.1"):
        return "It has to have one field Host."
    if codings and (version != b"HTTP/1.1" or [each.lower() for each in codings] != [_CODING]):
        return "Of transfer codings HTTP/1.1's chunked is taken alone, once."
    return ""
