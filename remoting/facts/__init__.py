"""What the parts of a cluster report about themselves, as types: brokers, controllers, and the snapshot made of both."""
