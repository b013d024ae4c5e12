"""Benchmarks: ``gradflow bench codec`` on one core, ``allreduce``, ``train`` and ``host`` between ranks."""
