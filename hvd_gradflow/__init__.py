"""Compressed, hierarchical gradient exchange for Horovod jobs.

Front ends: ``hvd_gradflow.torch``. Without a framework: ``hvd_gradflow.codec`` (what a gradient
is on the wire) and ``hvd_gradflow.reduce`` (the allreduce itself). Nothing heavy is imported here.
"""

__version__ = "0.1.0"
