"""Which systems take part in a comparison, and with which of their codecs."""

from __future__ import annotations

from hvd_gradflow.bench import ddp_hooks, horovod_ops, ours
from hvd_gradflow.errors import unknown_name

_OTHERS = {"horovod": horovod_ops.CODECS, "ddp": ddp_hooks.CODECS}


def chosen(systems: list[str], codecs: list[str]) -> dict[str, list[str]]:
    """Return the codecs of each system, in the order asked for.

    Parameters
    ----------
    systems : list of str
        ``horovod``, ``ddp``, ``gradflow``; or ``SYSTEM/CODEC`` for one codec of the system only.
    codecs : list of str
        Ours, where ``gradflow`` is asked for without a codec.

    Raises
    ------
    ConfigError
        For a system, codec or option that does not exist.
    """
    found: dict[str, list[str]] = {}
    for text in systems:
        system, _, codec = text.partition("/")
        if system == "gradflow":
            asked = [codec] if codec else codecs
            ours.check(asked)
        elif system not in _OTHERS:
            raise unknown_name("system", system, [*_OTHERS, "gradflow"])
        elif codec and codec not in _OTHERS[system]:
            raise unknown_name(f"codec of {system}", codec, _OTHERS[system])
        else:
            asked = [codec] if codec else list(_OTHERS[system])
        row = found.setdefault(system, [])
        row += [name for name in asked if name not in row]
    return found
