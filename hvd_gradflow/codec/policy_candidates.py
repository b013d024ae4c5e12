"""The ways to send a tensor that the policy ``adaptive`` chooses from, by label."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hvd_gradflow.codec.policy_base import codec_of

if TYPE_CHECKING:
    from hvd_gradflow.codec.base import Codec

FIXED = ("int2", "log4", "int4", "int8", "bf16")
# Ratios at which deadzone is on offer under a budget, about a factor of 1.4 apart; beyond them too little is
# left of a gradient.
RATIOS = (8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256)


def candidates(options: dict[str, Any], importance: str, similarity: float | None) -> dict[str, Codec]:
    """Return the candidates.

    Parameters
    ----------
    options : dict
        Handed to each codec that knows them.
    importance : {"energy", "coordinate"}
        With "coordinate" deadzone works in the normalized domain.
    similarity : float, optional
        The promise to keep. Without, deadzone is there once for each of `RATIOS`, labelled ``deadzone:16``.
    """
    domain = "normalized" if importance == "coordinate" else "energy"
    made = {name: codec_of(name, **options) for name in FIXED}
    deadzone = codec_of("deadzone", **options, domain=domain)
    if similarity is not None:
        return {**made, "deadzone": deadzone(similarity=similarity)}
    return {**made, **{f"deadzone:{ratio}": deadzone(target_ratio=ratio) for ratio in RATIOS}}
