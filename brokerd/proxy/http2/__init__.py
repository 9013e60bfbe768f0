"""A server's side of HTTP/2 (RFC 9113) without I/O: bytes in, events out; nothing in here knows gRPC (pure)."""
