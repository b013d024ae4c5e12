"""The contract of a codec, stated once.

A codec turns a float array into bytes (a *payload*) and back. It never changes after it was made; a changed
copy comes from calling it: ``codec(block=512)``. Every codec, built in or not, promises:

- A payload begins with the 32-byte header of docs/wire-format.md. Its size may depend on its content; it is
  at most :meth:`Codec.max_encoded_size`, and receivers go by its true size.
- The shape is not in the payload: decoding gives one dimension. Empty and 0-d arrays work.
- Zero has a code and stays exactly zero (but see `exact_zeros`). A finite input never decodes to NaN or
infinity.
- NaN or infinity is never hidden: the block that holds it (the element, where a codec has no blocks) decodes
  to something that is not finite.
- With a residual (error feedback), what is encoded is ``x + residual``, and afterwards
  ``residual = (x + residual) - decoded``, except in blocks that are not finite, where it keeps its value.
- Equal input, options, key and first give equal bytes, on every backend.
- A damaged payload raises WireError, and nothing was written then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import numpy as np

from hvd_gradflow.errors import UnknownOption, did_you_mean


@dataclass(frozen=True)
class Codec:
    """Base of all codecs; a subclass is a frozen dataclass whose fields are its options.

    Attributes
    ----------
    name : str
        Under which it is registered.
    wire_id : int
        In the header, 1 to 255; those under 128 are this package's.
    lossy : bool
        Whether a finite float32 array may come back changed.
    bits_per_element : float
        Nominal, without scales and header.
    stepped : bool
        Whether payloads are integers times steps that can be given, so that those of several ranks with the
        same steps add up exactly; such a codec also has the methods of
        :class:`hvd_gradflow.codec.deadzone.Deadzone`.
    transforms : bool
        Whether a stream encodes coefficients of a gradient by it; such a codec also has the methods of
        :class:`hvd_gradflow.codec.wavelet.Wavelet`.
    exact_zeros : bool
        Whether each zero comes back as zero; if not, only zeros throughout do.
    needs_feedback : bool
        Whether what arrives is far off where nothing keeps what was lost, whatever the rounding.
    low_rank : bool
        Whether streams reduce factors of whole tensors in place of payloads; such a codec also has the
        options of :class:`hvd_gradflow.codec.powersgd.PowerSgd`. An array by itself goes uncompressed.
    """

    name: ClassVar[str] = ""
    wire_id: ClassVar[int] = 0
    lossy: ClassVar[bool] = True
    bits_per_element: ClassVar[float] = 32.0
    stepped: ClassVar[bool] = False
    low_rank: ClassVar[bool] = False
    needs_feedback: ClassVar[bool] = False
    transforms: ClassVar[bool] = False
    exact_zeros: ClassVar[bool] = True

    @property
    def carrier(self) -> Codec:
        """The codec of the payloads in a reduction; this one, unless it works on coefficients."""
        return self

    def encode(
        self,
        x: Any,
        *,
        residual: np.ndarray | None = None,
        key: int | None = None,
        first: int = 0,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Encode an array.

        Parameters
        ----------
        x : array
            Whatever :func:`hvd_gradflow.device.view` takes: float16, bfloat16, float32 or float64, in NumPy,
            torch or another framework; any shape and strides.
        residual : ndarray of float32, optional
            As many elements as `x`, contiguous; changed in place.
        key : int, optional
            Of the stochastic rounding, from ``dither_key``; by default made of the codec's seed alone. It
            should differ from payload to payload and from rank to rank.
        first : int
            Index of ``x[0]`` in its tensor or bucket; a multiple of the block.
        out : ndarray of uint8, optional
            At least ``max_encoded_size(x.size)`` bytes to encode into.

        Returns
        -------
        ndarray of uint8
            The payload; part of `out`, where that is given.

        Raises
        ------
        TypeError
            If `x` is no such array.
        ValueError
            If residual, first or out do not fit.
        """
        raise TypeError(f"{type(self).__name__} does not define encode(); a codec must")

    def decode(self, payload: Any, out: np.ndarray | None = None) -> np.ndarray:
        """Decode a payload.

        Parameters
        ----------
        payload : bytes-like or ndarray of uint8
        out : ndarray of float32, optional
            Contiguous, with as many elements as were encoded.

        Returns
        -------
        ndarray of float32
            `out`, or a new array of one dimension.

        Raises
        ------
        WireError
            If the payload is damaged, of another codec, configuration, version or size.
        """
        raise TypeError(f"{type(self).__name__} does not define decode(); a codec must")

    def decode_add(self, payload: Any, acc: np.ndarray) -> np.ndarray:
        """Decode a payload and add it to `acc` (contiguous float32), which is returned.

        Raises
        ------
        WireError
            As :meth:`decode`.
        """
        acc += self.decode(payload).reshape(acc.shape)
        return acc

    def max_encoded_size(self, n: int) -> int:
        """Return the upper bound of the bytes of a payload of `n` elements, header included."""
        raise TypeError(f"{type(self).__name__} does not define max_encoded_size(); a codec must")

    def expected_bytes(self, n: int) -> int:
        """Return about how many bytes a payload of `n` elements has; the bound, unless content decides."""
        return self.max_encoded_size(n)

    def takes(self, shape: Sequence[int]) -> bool:
        """Return whether it is of use for a tensor of this shape; others of a stream go uncompressed."""
        return True

    def spec(self) -> dict[str, Any]:
        """Return the fields of ``gf_codec_spec``, by which compiled code and messages know this codec."""
        return {"id": self.wire_id, "bits": 0, "rounding": 0, "block": 1, "seed": 0, "params": (0, 0)}

    def at_step(self, step: int) -> Codec:
        """Return what a stream of gradients takes in this step, counted from 0; of the same block."""
        return self

    def for_sums(self) -> Codec | None:
        """Return the codec that loses nothing of a sum of this one's payloads, where sums are sparse.

        With one, the owner of a chunk encodes its own part as the others do, and the exact sum of what was
        sent travels on. None: the owner's part goes in as it is, and the sum is encoded like a gradient.
        """
        return None

    def get_config(self) -> dict[str, Any]:
        """Return the name and all options, as plain values; see :func:`hvd_gradflow.codec.from_config`."""
        return {"name": self.name, **{f.name: getattr(self, f.name) for f in fields(self)}}

    @classmethod
    def options(cls) -> list[str]:
        """Return the names of the options."""
        return [f.name for f in fields(cls)]

    @classmethod
    def configured(cls, options: dict[str, Any]) -> Codec:
        """Make a codec of these options.

        Raises
        ------
        ConfigError
            For an option that does not exist, or an impossible value.
        """
        cls._check_names(options)
        return cls(**options)

    def replace(self, **options: Any) -> Codec:
        """Return a copy with some options changed.

        Raises
        ------
        ConfigError
            For an option that does not exist, or an impossible value.
        """
        self._check_names(options)
        return replace(self, **options)

    __call__ = replace

    @classmethod
    def _check_names(cls, options: dict[str, Any]) -> None:
        known = cls.options()
        for option in options:
            if option not in known:
                listed = ", ".join(sorted(known)) or "it has none"
                hint = did_you_mean(option, known)
                raise UnknownOption(f"codec {cls.name!r}: unknown option {option!r}; known: {listed}{hint}")
