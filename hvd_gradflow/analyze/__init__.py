"""What a model's own gradients are like, and what follows for the choice of a codec: ``gradflow analyze``."""
