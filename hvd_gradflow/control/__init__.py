"""Training control: clipping, the learning rate, and a guard of the accuracy."""

from hvd_gradflow.control.guard import AccuracyGuard as AccuracyGuard
from hvd_gradflow.control.learning_rate import scaled_lr as scaled_lr
