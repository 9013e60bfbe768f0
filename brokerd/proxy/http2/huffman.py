"""Huffman-coded header strings, decoded a byte at a time (pure).

The code's tree is walked eight bits per step; what a step from a node does is worked out when it is first needed and remembered,
at most 256 nodes times 256 bytes for the whole process. The code itself (RFC 7541, appendix B) comes from the hpack library.
"""

from __future__ import annotations

from typing import Final

from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

_END_OF_STRING: Final = 256

EARLY_END: Final = "the end-of-string symbol inside a string"
BAD_PADDING: Final = "wrong padding"


class HuffmanError(ValueError):
    """The bytes are not a Huffman-coded string."""


def _build_tree() -> tuple[list[list[int]], frozenset[int]]:
    """Nodes as pairs of children, and where a string may end: a child >= 0 is a node, < 0 a leaf holding ~symbol.

    A string may end at the root, or up to seven bits along the code of END_OF_STRING, which is all ones.
    """
    nodes: list[list[int]] = [[0, 0]]
    for symbol, (code, length) in enumerate(zip(REQUEST_CODES, REQUEST_CODES_LENGTH, strict=True)):
        node = 0
        for shift in range(length - 1, 0, -1):
            bit = code >> shift & 1
            if not nodes[node][bit]:
                nodes.append([0, 0])
                nodes[node][bit] = len(nodes) - 1
            node = nodes[node][bit]
        nodes[node][code & 1] = ~symbol
    ends = [0]
    for _ in range(7):
        ends.append(nodes[ends[-1]][1])
    return nodes, frozenset(ends)


_NODES, _ENDS = _build_tree()
_STEPS: Final[dict[int, tuple[int, bytes]]] = {}


def _step(key: int) -> tuple[int, bytes]:
    """From which node, by which byte (node << 8 | byte), to which node, and what that spells."""
    node = key >> 8
    spelled = bytearray()
    for shift in range(7, -1, -1):
        child = _NODES[node][key >> shift & 1]
        if child < 0:
            if ~child == _END_OF_STRING:
                raise HuffmanError(EARLY_END)
            spelled.append(~child)
            child = 0
        node = child
    step = _STEPS[key] = node, bytes(spelled)
    return step


def decode_huffman(coded: bytes) -> bytes:
    """The string of a Huffman-coded one; raises HuffmanError when it is none, or its padding is wrong."""
    node = 0
    spelled = []
    steps = _STEPS
    for byte in coded:
        key = node << 8 | byte
        step = steps.get(key) or _step(key)
        node = step[0]
        spelled.append(step[1])
    if node not in _ENDS:
        raise HuffmanError(BAD_PADDING)
    return b"".join(spelled)
