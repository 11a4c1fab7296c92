"""Generation as a service: rows come and go one by one while weights change under them.

An object in a process, over any engine of `engines`; who may call it, and from where, is the caller's matter.
"""
