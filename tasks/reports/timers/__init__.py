"""Timer accuracy: how late timers were delivered, by topic and hour, and which were not."""
