"""An accountant with Flower's protocol that returns proved bounds."""

import dataclasses
from typing import Any

from dpmech.exceptions import CertificateError, InvalidParameterError, UnsupportedCombinationError
from dpmech.guards import check_delta, check_eps, check_integer, check_real
from dpmech.interchange.histories import NOTHING, Steps, history_profile, steps_of
from dpmech.numerics import Bounds, quotient_up

_VERSION = 1
_BACKEND = "dpmech"
# Pairs (sampling_method, neighboring_relation), in Flower's names, that a theorem covers.
_POISSON, _PLAIN, _ADD_REMOVE = "poisson", "no-amplification", "add-or-remove-one"
_CONFIG = ("target_delta", "population_size", "neighboring_relation", "sampling_method", "max_epsilon")


@dataclasses.dataclass(frozen=True)
class FlowerSpent:
    """The privacy cost so far, with the attributes of Flower's `PrivacySpent`.

    Attributes:
        epsilon: upper bound on eps.
        delta: the delta of that eps.
        num_releases: number of releases.
        accounting_method: "dpmech".
        optimal_order: always None; no Renyi orders are used.
    """

    epsilon: float
    delta: float
    num_releases: int
    accounting_method: str = _BACKEND
    optimal_order: float | None = None


class FlowerAccountant:
    """A `PrivacyAccountant` of Flower (1.42) that returns the upper ends of proved bounds.

    Use it instead of Flower's `RdpAccountant`, as in `DifferentialPrivacyServerSideFixedClipping(...,
    accountant=...)`. No Flower package is needed. The privacy unit is a client. `bounds` returns both ends.

    **Guarantee:** that of `dm.profile` for releases as the configuration describes them; the caller must
    ensure that clients are sampled accordingly.

    Args:
        config: a `PrivacyConfig` of Flower.

    Raises:
        InvalidParameterError: if the argument is not such a configuration.
        UnsupportedCombinationError: for clients sampled without replacement, which no theorem in dpmech
            covers.

    Example:
        With Flower, use its configuration and events; here, any objects with the same attributes.

        >>> import types
        >>> import dpmech as dm
        >>> config = types.SimpleNamespace(
        ...     target_delta=1e-5, population_size=1000, sampling_method="poisson",
        ...     neighboring_relation="add-or-remove-one", max_epsilon=3.0,
        ... )
        >>> accountant = dm.interchange.FlowerAccountant(config)
        >>> event = types.SimpleNamespace(noise_multiplier=1.1, sample_size=20, population_size=1000)
        >>> accountant.compose(event, count=100)
        >>> print(accountant.bounds(1e-5))
        [1.13164, 1.13178], deterministic upper bound
    """

    def __init__(self, config: Any) -> None:  # noqa: ANN401 - of a package that is not required
        for name in _CONFIG:
            if not hasattr(config, name):
                accepted = f"a PrivacyConfig of Flower, with {', '.join(_CONFIG)}"
                raise InvalidParameterError("config", config, accepted)
        check_delta(config.target_delta)
        check_integer("population_size", config.population_size, minimum=1)
        self._sampling, relation = _value(config.sampling_method), _value(config.neighboring_relation)
        if self._sampling not in {_POISSON, _PLAIN} or relation != _ADD_REMOVE:
            raise UnsupportedCombinationError(
                f"no theorem in dpmech covers sampling_method {self._sampling!r} with neighboring_relation "
                f"{relation!r}",
                supported=f"{_POISSON} and {_PLAIN}, with {_ADD_REMOVE}",
            )
        self._config = config
        self._releases: list[tuple[float, int, int]] = []  # noise multiplier, sample size, count

    @property
    def config(self) -> Any:  # noqa: ANN401 - as given
        """The configuration."""
        return self._config

    @property
    def num_releases(self) -> int:
        """The number of composed releases."""
        return sum(count for _, _, count in self._releases)

    def compose(self, event: Any, count: int = 1) -> None:  # noqa: ANN401 - of a package that is not required
        """Add `count` releases: `event` is a `GaussianPrivacyEvent` of Flower."""
        self._releases.append(self._entry(event, count))

    def bounds(self, delta: float) -> Bounds:
        """Bounds on the eps of all releases at delta in (0, 1)."""
        return self._bounds(self._releases, delta)

    def get_epsilon(self, delta: float) -> float:
        """The upper bound on eps at delta."""
        return self.bounds(delta).upper

    def get_delta(self, epsilon: float) -> float:
        """The upper bound on delta at eps >= 0."""
        at = check_eps(epsilon, zero_allowed=True)
        return history_profile(self._steps(self._releases)).delta(at).upper if self._releases else 0.0

    def get_privacy_spent(self, delta: float | None = None) -> FlowerSpent:
        """The privacy spent at delta; None for the delta of the configuration."""
        at = self._config.target_delta if delta is None else delta
        return FlowerSpent(self.get_epsilon(at), at, self.num_releases)

    def would_exceed(
        self,
        event: Any,  # noqa: ANN401 - as above
        max_epsilon: float | None = None,
        count: int = 1,
    ) -> bool:
        """Whether these releases would raise eps above a limit; None for the limit of the configuration."""
        limit = self._config.max_epsilon if max_epsilon is None else max_epsilon
        if limit is None:
            raise InvalidParameterError("max_epsilon", None, "given here or in the configuration")
        most = check_real("max_epsilon", limit, minimum=0.0, open_minimum=True)
        after = [*self._releases, self._entry(event, count)]
        return self._bounds(after, self._config.target_delta).upper > most

    def state_dict(self) -> dict[str, object]:
        """The state as data for JSON."""
        return {
            "schema_version": _VERSION,
            "backend": _BACKEND,
            "config": {name: _value(getattr(self._config, name)) for name in _CONFIG},
            "releases": [list(one) for one in self._releases],
        }

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore a state that `state_dict` returned for an accountant with the same configuration.

        Raises:
            CertificateError: if the state does not belong to this accountant.
        """
        own = self.state_dict()
        for name in ("schema_version", "backend", "config"):
            if state.get(name) != own[name]:
                raise CertificateError(
                    f"{name} of the state is not that of this accountant",
                    claimed=state.get(name),
                    recomputed=own[name],
                )
        releases = state.get("releases")
        try:
            found = [(noise, size, count) for noise, size, count in releases]  # type: ignore[attr-defined]  # whatever the file held
            self._steps(found)
        except (TypeError, ValueError) as error:
            reason = f"the releases of the state are none: {error}"
            raise CertificateError(reason, claimed=releases) from error
        self._releases = found

    def _entry(self, event: Any, count: int) -> tuple[float, int, int]:  # noqa: ANN401 - as above
        if event.population_size != self._config.population_size:
            raise InvalidParameterError(
                "population_size", event.population_size, f"{self._config.population_size}, as configured"
            )
        entry = event.noise_multiplier, event.sample_size, check_integer("count", count, minimum=1)
        self._steps([entry])
        return entry

    def _steps(self, releases: list[tuple[float, int, int]]) -> tuple[Steps, ...]:
        size = self._config.population_size
        for _, sample, _ in releases:
            check_integer("sample_size", sample, minimum=1, maximum=size)
        amplified = self._sampling == _POISSON
        return steps_of(
            [
                (noise, quotient_up(sample, size) if amplified else 1.0, count)
                for noise, sample, count in releases
            ]
        )

    def _bounds(self, releases: list[tuple[float, int, int]], delta: float) -> Bounds:
        at = check_delta(delta)
        return history_profile(self._steps(releases)).epsilon(at) if releases else NOTHING


def _value(option: Any) -> Any:  # noqa: ANN401 - an enum of Flower, or plain
    return getattr(option, "value", option)
