"""Whether a trusted key signed what is verified."""

import os
from collections.abc import Sequence

from dpmech.exceptions import CertificateError, InvalidParameterError
from dpmech.signing import PublicKey, Statement, check_signature, envelope_of
from dpmech.verifying.report import Check

__all__ = ["signature_check", "trusted"]


def trusted(
    keys: Sequence[PublicKey | str | os.PathLike[str]], more: Sequence[PublicKey], *, needed: bool
) -> tuple[PublicKey, ...]:
    """The keys, read from their files, and more of them.

    Raises:
        InvalidParameterError: if one cannot be read, or there is none and one is needed.
    """
    if isinstance(keys, str | os.PathLike) or not isinstance(keys, Sequence):
        raise InvalidParameterError("keys", keys, "a sequence of public keys or of their files")
    if needed and not keys and not more:
        raise InvalidParameterError(
            "key", None, "given where a signature is required: a file of a public key that is trusted"
        )
    return (*(key if isinstance(key, PublicKey) else PublicKey.load(key) for key in keys), *more)


def signature_check(
    text: str, path: str | os.PathLike[str] | None, keys: Sequence[PublicKey], *, required: bool
) -> tuple[Check | None, Statement | None]:
    """What the envelope beside a file proves.

    Args:
        text: of the file, as it was read.
        path: of the file; None where an object is verified.
        keys: that are trusted; without any, nothing is looked at.
        required: whether there has to be a signature.

    Returns:
        The check, if there is one to make, and who issued the file, if that is proved.
    """
    if not keys:
        return None, None
    try:
        envelope = None if path is None else envelope_of(path)
        if envelope is None:
            detail = "not signed" + (", a signature is required" if required else "")
            return Check("signature", ok=not required, detail=detail), None
        statement, signer = check_signature(text, envelope, keys)
    except CertificateError as error:
        return Check("signature", ok=False, detail=str(error)), None
    return Check("signature", ok=True, detail=f"{statement}, key {signer.key_id[:16]}"), statement
