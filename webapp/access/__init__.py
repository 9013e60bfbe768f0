"""Who of the cluster's clients may do what: users that sign requests, and their permissions."""
