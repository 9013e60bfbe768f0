"""The console's snapshot of the cluster: built from what controllers, brokers and the supervisor say (pure).

`build.build` makes one snapshot from one look at everything and the memory of earlier looks; `tasks.collector` is the caller.
The console reads the result and nothing else. Unknown values are None, never 0; what could not be asked keeps its place in the
lists, so that a page shows "unknown" instead of dropping it.
"""
