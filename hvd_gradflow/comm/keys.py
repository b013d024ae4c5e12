"""Keys of the datagram transport: one for each direction between two ranks (docs/security.md)."""

from __future__ import annotations

import re
import secrets

from hvd_gradflow.comm import _transports as native

SECRET_BYTES = 32
KEYS = 64  # of a direction, for 2^28 datagrams of each path each


def obstacle() -> str | None:
    """Return why datagrams cannot be protected here, with the remedy; None if they can."""
    try:
        import cryptography.hazmat.primitives.kdf.hkdf  # noqa: F401
    except ImportError as error:
        return f"the package cryptography cannot be imported ({error}): pip install 'hvd_gradflow[udp]'"
    why = native.load_crypto(_library())
    return f"OpenSSL's libcrypto is needed for AES-GCM ({why}): install libssl3" if why else None


def _library() -> str:
    """Return the file of the libcrypto that this interpreter uses, or nothing."""
    try:
        import _hashlib  # noqa: F401  # loads it

        with open("/proc/self/maps") as maps:
            found = re.search(r"(/\S*/libcrypto[^/\s]*\.so\S*)", maps.read())
    except (ImportError, OSError):
        return ""
    return found.group(1) if found else ""


def new_secret() -> bytes:
    """Return a secret of one generation: of one reducer, for as long as it lives."""
    return secrets.token_bytes(SECRET_BYTES)


def direction_keys(secret: bytes, session: int, source: int, target: int) -> list[bytes]:
    """Return the keys of what one rank sends to another, 32 bytes each, to be used one after the other.

    HKDF-SHA256 (RFC 5869) of the secret: extracted once, with the session, which is the generation, as salt;
    expanded for each key, with both ranks and the key's number in the info.
    """
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.hmac import HMAC
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    extract = HMAC(session.to_bytes(4, "big"), SHA256())
    extract.update(secret)
    key = extract.finalize()
    ranks = source.to_bytes(4, "big") + target.to_bytes(4, "big")
    return [
        HKDFExpand(SHA256(), 32, b"hvd_gradflow udp 1" + ranks + number.to_bytes(4, "big")).derive(key)
        for number in range(KEYS)
    ]
