"""Reading a tier without a broker: its object store, what the manifest says, messages in bulk, and what was exported."""
