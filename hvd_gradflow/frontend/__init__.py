"""What the front ends have in common: compressions by name, Horovod's state, tokens, sparse messages."""
