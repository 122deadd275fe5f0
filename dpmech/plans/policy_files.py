"""Policy files: TOML, one entry a rule."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmech.exceptions import InvalidParameterError
from dpmech.files import read_toml
from dpmech.mechanism import Adjacency, Unit
from dpmech.numerics import Kind
from dpmech.plans.suggestions import check_known, meant
from dpmech.signing import PublicKey
from dpmech.verifying import Policy

__all__ = ["read_policy"]

_NUMBERS = ("max_eps", "max_delta", "max_delta_times_dataset_size", "dataset_size", "max_age_days")
_NAMES: dict[str, Mapping[str, Any]] = {
    "forbidden_guarantees": {kind.name.lower(): kind for kind in Kind},
    "allowed_adjacencies": {one.value: one for one in Adjacency},
    "allowed_units": {one.value: one for one in Unit},
}
_KEYS = (*_NUMBERS, *_NAMES, "require_signature", "require_cryptographic_generator", "trusted_keys")


def read_policy(path: str | os.PathLike[str]) -> Policy:
    """Read a policy: a TOML file whose entries are arguments of `Policy`.

    Guarantees, adjacencies and units stand there by their names, in lists; `trusted_keys` are files, looked
    for from the folder of the policy on.

    Raises:
        InvalidParameterError: if the file cannot be read, or an entry is unknown or out of range.
        MissingDependencyError: where it names keys, without the extra `sign`.
    """
    table = read_toml("policy", path)
    for key, value in table.items():
        if key not in _KEYS:
            hint = meant(key, _KEYS)
            raise InvalidParameterError(f"{path}: entry {key}", value, "one of " + ", ".join(_KEYS), hint)
    if not table:
        raise InvalidParameterError("policy", os.fspath(path), "a file with one rule at least")
    try:
        return _policy(table, Path(path).parent)
    except InvalidParameterError as error:
        name = f"{path}: {error.name}"
        raise InvalidParameterError(name, error.value, error.accepted, error.hint) from error


def _policy(table: dict[str, Any], folder: Path) -> Policy:
    known: dict[str, Any] = {
        key: _members(key, value) if key in _NAMES else value for key, value in table.items()
    }
    if "trusted_keys" in known:
        names = _texts("trusted_keys", known["trusted_keys"])
        known["trusted_keys"] = tuple(_key(folder / name) for name in names)
    return Policy(**known)


def _key(path: Path) -> PublicKey:
    try:
        return PublicKey.load(path)
    except InvalidParameterError as error:
        raise InvalidParameterError("trusted_keys", error.value, error.accepted, error.hint) from error


def _members(key: str, value: object) -> tuple[Any, ...]:
    known = _NAMES[key]
    return tuple(known[check_known(key, name, known)] for name in _texts(key, value))


def _texts(key: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidParameterError(key, value, 'a list of names, such as ["estimate"]')
    return value
