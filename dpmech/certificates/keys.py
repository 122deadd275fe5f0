"""Ed25519 keys in PEM files, as OpenSSL writes them; private keys are readable by their owner only."""

import dataclasses
import hashlib
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpmech.exceptions import InvalidParameterError, MissingDependencyError
from dpmech.files import read_bytes

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey


# Size limit of a key file, in bytes; the PEM of an Ed25519 key is smaller.
_LARGEST = 10_000
_OWNER_ONLY = 0o600
_PUBLIC = 0o644


@dataclasses.dataclass(frozen=True)
class PublicKey:
    """A public key, which verifies signatures.

    Attributes:
        key: the key object of the package `cryptography`.

    Example:
        >>> import tempfile, dpmech as dm
        >>> folder = tempfile.mkdtemp()
        >>> public = dm.certificates.new_key(f"{folder}/key.pem")
        >>> policy = dm.Policy(max_eps=8.0, trusted_keys=(dm.PublicKey.load(public),))
        >>> len(policy.trusted_keys[0].key_id)
        64
    """

    key: "Ed25519PublicKey"

    @property
    def key_id(self) -> str:
        """SHA-256 (hex) of the key in DER, the same for everyone."""
        _, serialization = _cryptography()
        der = self.key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        return hashlib.sha256(der).hexdigest()

    def accepts(self, signature: bytes, content: bytes) -> bool:
        """Whether this key made the signature, over these bytes."""
        from cryptography.exceptions import InvalidSignature

        try:
            self.key.verify(signature, content)
        except InvalidSignature:
            return False
        return True

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PublicKey":
        """Read a public key.

        Raises:
            InvalidParameterError: if the file cannot be read, or is not an Ed25519 public key in PEM.
            MissingDependencyError: if the package `cryptography` is not installed.
        """
        ed25519, serialization = _cryptography()
        content = _content(path)
        try:
            key = serialization.load_pem_public_key(content)
        except _unreadable():
            hint = ": that is a private key; pass the other file" if b"PRIVATE" in content else ""
            raise InvalidParameterError("key", os.fspath(path), _ACCEPTED[cls], hint) from None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise InvalidParameterError("key", os.fspath(path), _ACCEPTED[cls])
        return cls(key)


@dataclasses.dataclass(frozen=True)
class PrivateKey:
    """A private key, which creates signatures.

    Attributes:
        key: the key object of the package `cryptography`; it is not printed.
    """

    key: "Ed25519PrivateKey" = dataclasses.field(repr=False)

    @property
    def public(self) -> PublicKey:
        """The public key that verifies signatures by this key."""
        return PublicKey(self.key.public_key())

    def signature(self, content: bytes) -> bytes:
        """64 bytes, deterministic: equal for equal content."""
        return self.key.sign(content)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "PrivateKey":
        """Read a private key that only its owner can read.

        Raises:
            InvalidParameterError: if the file cannot be read, others may read it, or it is not an Ed25519
                private key in PEM without a password.
            MissingDependencyError: if the package `cryptography` is not installed.
        """
        ed25519, serialization = _cryptography()
        content = _content(path)
        try:
            key = serialization.load_pem_private_key(content, password=None)
        except _unreadable():
            hint = ": that is a public key; pass the other file" if b"PUBLIC" in content else ""
            raise InvalidParameterError("key", os.fspath(path), _ACCEPTED[cls], hint) from None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise InvalidParameterError("key", os.fspath(path), _ACCEPTED[cls])
        if os.name == "posix" and stat.S_IMODE(Path(path).stat().st_mode) & 0o077:
            raise InvalidParameterError(
                "key", os.fspath(path), "readable by its owner alone", f": chmod 600 {os.fspath(path)}"
            )
        return cls(key)


_ACCEPTED = {
    PublicKey: "an Ed25519 public key in PEM",
    PrivateKey: "an Ed25519 private key in PEM, without a password",
}


def new_key(path: str | os.PathLike[str]) -> Path:
    """Write a new private key with mode 0600, and its public key next to it, named `.pub`.

    Existing files are not replaced.

    Args:
        path: path of the private key.

    Returns:
        The path of the public key.

    Raises:
        InvalidParameterError: if one of the files exists or cannot be written.
        MissingDependencyError: if the package `cryptography` is not installed.

    Example:
        >>> import dpmech as dm
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> dm.certificates.new_key(folder / "reviewer.key").name
        'reviewer.key.pub'
    """
    ed25519, serialization = _cryptography()
    private, public = Path(path), Path(f"{os.fspath(path)}.pub")
    for target in (private, public):
        if target.exists():
            raise InvalidParameterError("new_key", str(target), "a file that does not exist")
    key = ed25519.Ed25519PrivateKey.generate()
    pem = serialization.Encoding.PEM
    written = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    shown = key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    _write_new(private, written, _OWNER_ONLY)
    _write_new(public, shown, _PUBLIC)
    return public


def _write_new(path: Path, content: bytes, mode: int) -> None:
    """Create a file with this mode from the start; it must not exist."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
        except OSError:
            path.unlink(missing_ok=True)  # do not leave a partial key behind
            raise
    except OSError as error:
        raise InvalidParameterError(
            "new_key", str(path), f"a file that can be written ({error.strerror})"
        ) from error


def _content(path: str | os.PathLike[str]) -> bytes:
    return read_bytes("key", path, largest=_LARGEST)


def _unreadable() -> tuple[type[Exception], ...]:
    from cryptography.exceptions import UnsupportedAlgorithm

    return ValueError, TypeError, UnsupportedAlgorithm


def _cryptography() -> tuple[Any, Any]:
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise MissingDependencyError("cryptography", "sign") from error
    return ed25519, serialization
