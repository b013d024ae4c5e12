"""Errors, one class per kind of trouble a caller can act upon."""


class GradflowError(Exception):
    """Base of every error this package raises on purpose."""


class ConfigError(GradflowError, ValueError):
    """An option, name or ``GRADFLOW_*`` variable that does not exist or has an impossible value."""


class UnknownOption(ConfigError):
    """An option that its codec or policy does not have."""


class WireError(GradflowError, ValueError):
    """A payload that cannot be decoded: truncated, damaged, of another version or size."""


class MismatchError(GradflowError):
    """Ranks disagree about a tensor (shape, dtype, codec, order) or about their configuration."""


class PeerError(GradflowError):
    """A rank that is missing, has ended, has stopped or has failed."""


class WaitTimeout(GradflowError, TimeoutError):
    """``Handle.wait(timeout=...)`` ran out; the reduction itself goes on."""


class UnsupportedError(GradflowError, NotImplementedError):
    """A feature of Horovod that is not carried here, or a build that cannot carry it."""


class DeviceError(GradflowError, RuntimeError):
    """A device's runtime refused or failed: out of memory, an illegal address, a lost device."""


class ErasureError(GradflowError):
    """A block of an erasure code of which too little arrived.

    Attributes
    ----------
    missing : int
        Source symbols that did not arrive.
    needed : int
        How many symbols more, of those that did not arrive, are needed at least.
    """

    def __init__(self, text: str, missing: int, needed: int) -> None:
        super().__init__(text)
        self.missing, self.needed = missing, needed

    def __reduce__(self):
        return type(self), (str(self), self.missing, self.needed)


def unknown_name(kind: str, name: object, known) -> ConfigError:
    """The one sentence for a name that does not exist, with the list of what does."""
    names = sorted(map(str, known))
    return ConfigError(f"unknown {kind} {name!r}; known: {', '.join(names)}{did_you_mean(name, names)}")


def did_you_mean(name: object, known) -> str:
    """Return the end of a sentence on an unknown name: the nearest one that exists, if any is near."""
    import difflib

    close = difflib.get_close_matches(str(name), known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
