"""Replication of one broker group: roles, epochs, the copy of the log, the required set, and the links to the controllers.

Read the rooms in this order: `epochs` (what two logs have in common), `wire` (the bytes between master and replica),
`required_set` (who must have a message before it is acknowledged), `roles` (`mastership` and `followership`, the two sides of
replication; `role_machine`, one broker's role and its switch; `driver`, which carries out what they decide over the seams to
disk and log), `controllers` (what is said to those who decide roles; its sessions are pure, its links touch sockets).
`sockets` has the connections between brokers; `replica` is what the broker's assembly uses.
"""
