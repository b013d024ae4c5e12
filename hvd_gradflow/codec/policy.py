"""Which codec each tensor of a stream takes: one for all, by kind and importance, or by measurement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hvd_gradflow.codec.policy_adaptive import AdaptivePolicy
from hvd_gradflow.codec.policy_auto import AutoPolicy
from hvd_gradflow.codec.policy_base import FixedPolicy, Policy
from hvd_gradflow.errors import ConfigError

__all__ = ["POLICIES", "AdaptivePolicy", "AutoPolicy", "FixedPolicy", "Policy", "as_policy"]

# By the name under which they stand beside the codecs.
POLICIES: dict[str, Callable[..., Policy]] = {"adaptive": AdaptivePolicy, "auto": AutoPolicy}


def as_policy(choice: Any, **options: Any) -> Policy:
    """Return a policy of its own for one stream.

    Parameters
    ----------
    choice : str, Codec or Policy
        The name of a policy (in `POLICIES`) or codec, a codec, or a policy (of which a copy without a past is
        made).
    **options
        Options of the codec or the policy, where `choice` is a name.

    Raises
    ------
    ConfigError
        For a name or an option that does not exist, or options beside an object.
    """
    if isinstance(choice, str):
        if choice in POLICIES:
            return POLICIES[choice](**options)
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
