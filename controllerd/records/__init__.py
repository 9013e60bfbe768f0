"""How what was decided becomes an entry of the log, and how what was agreed on becomes a snapshot."""
