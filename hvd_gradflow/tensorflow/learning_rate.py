"""The learning rate of many ranks."""

from __future__ import annotations

from horovod.tensorflow import global_process_set

from hvd_gradflow.frontend.learning_rate import rule_for

scaled_lr = rule_for(lambda: global_process_set)
