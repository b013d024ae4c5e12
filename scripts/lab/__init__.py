"""A cluster of several nodes on one Linux machine, made of namespaces; `scripts/netlab.py` is its command."""
