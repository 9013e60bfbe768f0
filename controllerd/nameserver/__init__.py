"""The embedded name server: where topics and brokers are, as the brokers told it. Soft state, never mixed with Raft's."""
