"""What two programs must agree on: bytes, codes, errors, files and the client. Imports none of the other packages."""
