"""Access control: who a request comes from, and whether its sender may do what it asks for."""
