"""Which broker groups take which message groups of a topic: the subject `placements` of the controllers' log."""
