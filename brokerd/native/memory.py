"""Addresses of Python's buffers for calls into the library, also of those that nobody may write to."""

from __future__ import annotations

import ctypes
from types import TracebackType
from typing import Any, Final

from remoting.disk import Bytes

_SIMPLE: Final = 0  # contiguous bytes
_get: Any = ctypes.pythonapi.PyObject_GetBuffer
_get.argtypes, _get.restype = (ctypes.py_object, ctypes.c_void_p, ctypes.c_int), ctypes.c_int
_release: Any = ctypes.pythonapi.PyBuffer_Release
_release.argtypes, _release.restype = (ctypes.c_void_p,), None


class _Buffer(ctypes.Structure):
    """Python's `Py_buffer`."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_void_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    )


class Pinned:
    """The address of a buffer, which stays where it is and as long as it is inside of the `with`."""

    __slots__ = ("_buffer", "_content")

    def __init__(self, content: Bytes) -> None:
        self._content = content
        self._buffer = _Buffer()

    def __enter__(self) -> int:
        _get(self._content, ctypes.addressof(self._buffer), _SIMPLE)  # raises BufferError itself
        return self._buffer.buf or 0

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _release(ctypes.addressof(self._buffer))
