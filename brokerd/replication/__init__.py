"""Replication of one broker group: roles, epochs, the copy of the log, the required set, and the links to the controllers.

Read in this order: `epochs` (what two logs have in common), `frames` (the bytes between master and replica), `sync_state` (who
must have a message before it is acknowledged), `leading` and `following` (the two ends of a replication connection), `core`
(one broker's role and its switch), `control` (what it says to the controllers): these are pure. `engine` carries out what they
decide over the seams to disk and log; `leader`, `follower`, `controller_link`, `name_server_link` touch sockets; `replica` is
what the broker's assembly uses.
"""
