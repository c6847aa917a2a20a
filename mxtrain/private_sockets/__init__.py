"""Restricts the sockets of ps-lite and Gloo to the current user. By default every local user can connect to them.

folder: creates the folder of the sockets, with mode 0700 and a random name, before any library listens.
calls: replaces the functions that a loaded library calls, such as `bind` and `connect`.
zeromq: moves ps-lite's sockets from /tmp to the folder.
slow_link: forwards the connections of workers through a process that can delay them (debug=chaos).
gloo: replaces Gloo's loopback ports with sockets in the folder.
"""
