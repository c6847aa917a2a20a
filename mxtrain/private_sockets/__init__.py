"""Sockets that only this user can reach, for libraries that would listen where every user of the machine can connect.

folder: of mode 0700, under a random name, made before anything listens
calls: what a library that is loaded calls is replaced
zeromq: ps-lite's sockets are put into the folder instead of /tmp
slow_link: ps-lite's connections of workers go through a process that can hold them back (debug=chaos)
gloo: Horovod's connections go through sockets in the folder instead of ports of loopback
"""
