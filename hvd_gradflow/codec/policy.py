"""Which codec each tensor of a stream takes: one for all, or one by kind, importance and byte budget."""

from __future__ import annotations

from typing import Any

from hvd_gradflow.codec.policy_adaptive import AdaptivePolicy
from hvd_gradflow.codec.policy_base import FixedPolicy, Policy
from hvd_gradflow.errors import ConfigError

__all__ = ["AdaptivePolicy", "FixedPolicy", "Policy", "as_policy"]


def as_policy(choice: Any, **options: Any) -> Policy:
    """Return a policy of its own for one stream.

    Parameters
    ----------
    choice : str, Codec or Policy
        ``"adaptive"``, the name of a codec, a codec, or a policy (a copy without a past is made of it).
    **options
        Options of the codec or the policy, where `choice` is a name.

    Raises
    ------
    ConfigError
        For a name or an option that does not exist, or options beside an object.
    """
    if isinstance(choice, str):
        if choice == "adaptive":
            return AdaptivePolicy(**options)
        from hvd_gradflow.codec.registry import get

        return FixedPolicy(get(choice, **options))
    if options:
        raise ConfigError(
            f"options {sorted(options)} beside {choice!r}: give options with a name, or configure it"
        )
    if isinstance(choice, Policy):
        return choice.fresh()
    if all(hasattr(choice, attribute) for attribute in ("encode", "decode", "get_config")):
        return FixedPolicy(choice)
    raise ConfigError(
        f"compression {choice!r} of type {type(choice).__name__}: expected a name, a codec or a policy"
    )
