"""Residuals of one rank: held, owed, folded into an input, kept after a step that came to nothing."""

from __future__ import annotations

import numpy as np

from hvd_gradflow.reduce.residuals import Residuals


def test_what_was_held_is_owed_after_a_release_and_folded_once():
    residuals = Residuals()
    held = np.arange(4, dtype=np.float32)
    residuals.hold("w", held)
    residuals.release()
    held[:] = 9  # the array goes back to its bucket
    values = np.ones(4, np.float32)
    owed = residuals.fold("w", values, 2.0)
    assert values.tolist() == [1, 3, 5, 7]
    assert owed.tolist() == [0, 1, 2, 3]
    assert residuals.fold("w", values, 2.0) is None
    residuals.keep("w", owed)
    residuals.keep("w", owed)
    assert residuals.fold("w", values, 1.0).tolist() == [0, 2, 4, 6]


def test_a_loaded_state_is_owed_by_rank_0_only():
    for rank, expected in ((0, [1.0, 2.0]), (1, [0.0, 0.0])):
        residuals = Residuals()
        residuals.of("w", 2)[:] = 5
        residuals.replace({"w": [[1.0, 2.0]]}, rank)
        assert residuals.of("w", 2).tolist() == [0, 0]
        assert residuals.fold("w", np.zeros(2, np.float32), 1.0).tolist() == expected


def test_another_size_begins_anew():
    residuals = Residuals()
    residuals.of("w", 2)[:] = 5
    assert residuals.of("w", 3).tolist() == [0, 0, 0]
