"""A server's side of HTTP/2 (RFC 9113) without I/O: bytes in, events out, answers collected as bytes (pure).

frames.py knows the bytes of frames, headers.py the header blocks and their rules, limits.py what a peer may cost us, streams.py
the life of a stream, connection.py puts them together. Nothing in here knows gRPC.
"""
