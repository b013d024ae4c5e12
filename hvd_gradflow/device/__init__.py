"""Hardware abstraction: where arrays lie, and the kernels that work on them."""
