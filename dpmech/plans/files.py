"""Files of strategies, policies and privacy claims."""

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dpmech.audits import PublishedClaim, Shuffled
from dpmech.certificates import Policy, PublicKey
from dpmech.exceptions import InvalidParameterError
from dpmech.files import read_bytes, read_toml, write_bytes
from dpmech.guards import check_integer, check_real, check_sigma
from dpmech.mechanism import (
    Adjacency,
    Mechanism,
    Participation,
    Strategy,
    Unit,
    noise_multiplier,
    sigma_use,
)
from dpmech.numerics import Kind
from dpmech.plans.names import STRATEGIES, check_known, meant, owners, sampling_kind
from dpmech.plans.training_plans import Entry, TrainingPlan, build_strategy

# Size limit in bytes: a dense matrix of 3000 steps, larger than any certificate of one.
_LARGEST_STRATEGY = 200_000_000


def read_strategy(path: str | os.PathLike[str]) -> Strategy:
    """Read a strategy from a JSON file, as written by `Strategy.to_json`.

    Raises:
        InvalidParameterError: if the file cannot be read, or does not contain a strategy.
    """
    content = read_bytes("strategy_file", path, largest=_LARGEST_STRATEGY)
    try:
        return Strategy.from_json(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise InvalidParameterError("strategy_file", str(path), "a readable file (not text)") from error
    except InvalidParameterError as error:
        raise InvalidParameterError(
            "strategy_file",
            str(path),
            "a strategy in JSON, as `dpmech optimize --out-strategy` and Strategy.to_json write it",
            error.hint if error.name == "strategy" else f" ({error})",
        ) from error


def write_strategy(path: str | os.PathLike[str], strategy: Strategy) -> None:
    """Write a strategy to a file, atomically, in the format of `read_strategy`.

    Raises:
        InvalidParameterError: if the file cannot be written.
    """
    write_bytes("out_strategy", path, f"{strategy.to_json()}\n".encode())


_POLICY_NUMBERS = ("max_eps", "max_delta", "max_delta_times_dataset_size", "dataset_size", "max_age_days")
_POLICY_NAMES: dict[str, Mapping[str, Any]] = {
    "forbidden_guarantees": {kind.name.lower(): kind for kind in Kind},
    "allowed_adjacencies": {one.value: one for one in Adjacency},
    "allowed_units": {one.value: one for one in Unit},
}
_POLICY_KEYS = (
    *_POLICY_NUMBERS,
    *_POLICY_NAMES,
    "require_signature",
    "require_cryptographic_generator",
    "require_decided",
    "trusted_keys",
)


def read_policy(path: str | os.PathLike[str]) -> Policy:
    """Read a policy: a TOML file whose entries are arguments of `Policy`.

    Guarantees, adjacencies and units are lists of names. `trusted_keys` are files, with paths relative to the
    folder of the policy.

    Raises:
        InvalidParameterError: if the file cannot be read, or an entry is unknown or out of range.
        MissingDependencyError: if it names keys and the extra `sign` is not installed.
    """
    table = read_toml("policy", path)
    for key, value in table.items():
        if key not in _POLICY_KEYS:
            hint = meant(key, _POLICY_KEYS)
            raise InvalidParameterError(
                f"{path}: entry {key}", value, "one of " + ", ".join(_POLICY_KEYS), hint
            )
    if not table:
        raise InvalidParameterError("policy", os.fspath(path), "a file with one rule at least")
    try:
        return _policy(table, Path(path).parent)
    except InvalidParameterError as error:
        name = f"{path}: {error.name}"
        raise InvalidParameterError(name, error.value, error.accepted, error.hint) from error


def _policy(table: dict[str, Any], folder: Path) -> Policy:
    known: dict[str, Any] = {
        key: _members(key, value) if key in _POLICY_NAMES else value for key, value in table.items()
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
    known = _POLICY_NAMES[key]
    return tuple(known[check_known(key, name, known)] for name in _texts(key, value))


def _texts(key: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise InvalidParameterError(key, value, 'a list of names, such as ["estimate"]')
    return value


# How a run was trained, which cannot be calibrated: for claims only.
_SHUFFLES = {"shuffle": False, "shuffle-once": True}
_PLAN_KEYS = ("dataset_size", "batch_size", "epochs")
_CLAIM_KEYS = {
    "name", "sampling", "steps", "sigma", "noise_multiplier", "delta", "claimed_eps", "rounding", "blocks",
    "adjacency", "note", "recorded_eps", "strategy", "column_normalized",
}  # fmt: skip


def read_claims(path: str | Path) -> list[PublishedClaim]:
    """Read a TOML file of [[claim]] tables; sigma, claimed_eps and recorded_eps may be lists.

    A claim specifies `steps` and the settings of its sampling (see the documentation), or a plan:
    dataset_size, batch_size and epochs. The sampling `shuffle` or `shuffle-once` states how the batches of
    the run were formed, regardless of the accounting.

    Raises:
        InvalidParameterError: if the file cannot be read, or an entry is missing, unknown or out of range.
    """
    data = read_toml("claims", path)
    tables = data.pop("claim", None)
    defaults = data.pop("defaults", {})
    if data or not isinstance(tables, list) or not tables or not isinstance(defaults, dict):
        raise InvalidParameterError(
            "claims", sorted(data) or tables, "[[claim]] tables, and one table [defaults] at most"
        )
    return [claim for table in tables for claim in _series(defaults | _table(table))]


def published_claims() -> dict[str, Path]:
    """Files of published claims that are included in the package, by name; `read_claims` reads them."""
    folder = Path(__file__).parent / "published"
    return {path.stem: path for path in sorted(folder.glob("*.toml"))}


def _table(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidParameterError("claim", value, "a [[claim]] table")
    return value


def _series(table: dict[str, Any]) -> list[PublishedClaim]:
    """One claim, or one per entry of its lists."""
    lists = {
        key: value
        for key, value in table.items()
        if key in {"sigma", "noise_multiplier", "claimed_eps", "recorded_eps"} and isinstance(value, list)
    }
    if not lists:
        return [_claim(table)]
    lengths = {len(value) for value in lists.values()}
    if len(lengths) > 1 or lengths == {0}:
        raise InvalidParameterError("claim", table, f"one with equally long lists {sorted(lists)}")
    return [_claim(table | {key: value[i] for key, value in lists.items()}) for i in range(lengths.pop())]


def _claim(table: dict[str, Any]) -> PublishedClaim:
    given = dict(table)
    for key in ("name", "sampling", "delta", "claimed_eps"):
        if key not in given:
            raise InvalidParameterError(key, None, "given for every claim")
    n, participation, used = _schedule(given)
    strategy_name = str(given.get("strategy", "identity"))
    named = STRATEGIES.get(strategy_name)
    options = {} if named is None else {key: given[key] for key in named.options if key in given}
    unknown = sorted(set(given) - _CLAIM_KEYS - used - set(options))
    if unknown:
        raise InvalidParameterError("claim", unknown, f"without these entries (sampling {given['sampling']})")
    normalized = given.get("column_normalized", False)
    if not isinstance(normalized, bool):
        raise InvalidParameterError("column_normalized", normalized, "true or false")
    strategy = build_strategy(Entry(strategy_name, options, normalized), n)
    adjacency = {member.value: member for member in Adjacency}.get(given.get("adjacency", "add_remove"))
    if adjacency is None:
        raise InvalidParameterError(
            "adjacency", given["adjacency"], "one of add_remove, zero_out, replace_one"
        )
    sigma = _sigma(given, strategy)
    note = given.get("note", "")
    if not isinstance(note, str):
        raise InvalidParameterError("note", note, "text")
    return PublishedClaim(
        name=given["name"],
        strategy=strategy,
        participation=participation,
        sigma=sigma,
        delta=given["delta"],
        claimed_eps=given["claimed_eps"],
        rounding=given.get("rounding", 0.0),
        blocks=given.get("blocks", 1),
        adjacency=adjacency,
        note=note,
        recorded_eps=given.get("recorded_eps"),
    )


def _sigma(given: dict[str, Any], strategy: Strategy) -> float:
    """Sigma as given, or from Opacus' noise multiplier, to which it is equal for i.i.d. noise."""
    if ("sigma" in given) == ("noise_multiplier" in given):
        raise InvalidParameterError(
            "sigma", given.get("sigma"), "given, or else noise_multiplier, and not both"
        )
    if "sigma" in given:
        return check_sigma(given["sigma"])
    multiplier = check_real("noise_multiplier", given["noise_multiplier"], minimum=0.0, open_minimum=True)
    # Claims in files are about examples; sigma is the same under every participation.
    mechanism = Mechanism(strategy)
    if noise_multiplier(mechanism, multiplier) is None:
        raise InvalidParameterError(
            "noise_multiplier", multiplier, f"left out with {strategy!r}: {sigma_use(mechanism)}; give sigma"
        )
    return multiplier


def _schedule(given: dict[str, Any]) -> tuple[int, Participation | Shuffled, set[str]]:
    """Number of steps, participation, and the keys that determine them."""
    sampling = given["sampling"]
    if isinstance(sampling, str) and sampling in _SHUFFLES:
        return _shuffled(given, once=_SHUFFLES[sampling])
    kind = sampling_kind(sampling)
    if "steps" not in given:
        missing = [key for key in _PLAN_KEYS if key not in given]
        if missing:
            raise InvalidParameterError("steps", None, f"given, or else {', '.join(missing)}")
        plan = TrainingPlan(*(given[key] for key in _PLAN_KEYS))
        extra = [key for key in owners() if key in given]
        details = {key: given[key] for key in extra}
        return plan.steps, plan.participation(sampling, **details), {*_PLAN_KEYS, *extra}
    n = check_integer("steps", given["steps"], minimum=1)
    keys = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]  # all are dataclasses
    if "sampling_prob" in keys and "sampling_prob" not in given:
        rate = [key for key in ("batch_size", "dataset_size") if key not in given]
        if rate:
            raise InvalidParameterError("sampling_prob", None, "given, or else batch_size and dataset_size")
        size = check_integer("dataset_size", given["dataset_size"], minimum=1)
        share = check_integer("batch_size", given["batch_size"], minimum=1, maximum=size) / size
        _check_given(kind, given | {"sampling_prob": share})
        participation = kind.of_entries(given | {"sampling_prob": share})
        return n, participation, keys | {"batch_size", "dataset_size"}
    _check_given(kind, given)
    return n, kind(**{name: given[name] for name in keys & set(given)}), keys


def _shuffled(given: dict[str, Any], *, once: bool) -> tuple[int, Shuffled, set[str]]:
    """Steps as given, or those of the epochs."""
    span = "epochs" if "steps" not in given else "steps"
    for key in ("dataset_size", "batch_size", span):
        if key not in given:
            raise InvalidParameterError(key, None, f"given with sampling {given['sampling']}")
    batches = Shuffled(given["dataset_size"], given["batch_size"], given.get("drop_last", True), once)
    count = check_integer(span, given[span], minimum=1)
    steps = count if span == "steps" else count * batches.batches_per_epoch
    return steps, batches, {"dataset_size", "batch_size", "drop_last", span}


def _check_given(kind: type[Participation], given: dict[str, Any]) -> None:
    """Refuse a claim without a field that its participation needs."""
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]  # all are dataclasses
        if field.name not in given and field.default is dataclasses.MISSING:
            raise InvalidParameterError(field.name, None, f"given with sampling {kind.plan_name}")
