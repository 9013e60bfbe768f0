"""Users and permissions in the controllers' log."""
