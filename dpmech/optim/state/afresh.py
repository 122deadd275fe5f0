"""Afresh: calls of a loss that see nothing of the calls before."""

import functools
import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from dpmech.optim.state.attributes import Attributes
from dpmech.optim.state.generators import drawn, global_generators, seed, stored
from dpmech.optim.state.parts import named_parts
from dpmech.optim.state.references import hooks_of


class Afresh:
    """Calls a loss so that no call sees what examples of an earlier call left in the model or the loss.

    A batch takes several calls: one for each microbatch or example, and one of its first example alone if
    it is not yet known which layers a loss uses. Before each, everything that is found in attributes of the
    model, and from the loss on, is put back: in a loop a call can put numbers of its example into any of it,
    and in any mode the number of calls follows from that of the examples.

    Tensors of the model that may change, as they do not depend on the data, keep what the first call of a
    batch gave them. A call that seeds a generator of random numbers, a global one or one that is found, by
    values of its example determines no draws of others.

    Args:
        loss: `loss(model, *example)`.
        model: whose attributes are restored.
        followed: the user's loss, from which references are followed.
        check: called after each call of the loss: raises if it changed other contents of the model.
        public: returns the owners and names of the tensors of the model that may change.
        seeds: of the parts of a batch: "secret" for those that follow from Python's generator, which has a
            secret seed; "own" for each generator's own, so that they follow from the seeds of a script; None
            to leave generators as they are.
        buffers: whether all buffers of the model are put back, too.

    Attributes:
        followed: the user's loss.
    """

    def __init__(
        self,
        loss: Callable[..., Tensor],
        model: nn.Module,
        *,
        followed: Callable[..., Any] | None = None,
        check: Callable[[], object] = lambda: None,
        public: Callable[[], Iterable[tuple[dict[str, Any], str]]] = lambda: (),
        seeds: Literal["secret", "own"] | None = "secret",
        buffers: bool = False,
    ) -> None:
        self._loss = loss
        self._model = model
        self.followed = loss if followed is None else followed
        self._check = check
        self._public = public
        self._seeds = seeds
        self._buffers = buffers
        self._before: Attributes | None = None
        self._last: Attributes | None = None  # for its copies
        self._tensors: list[_PublicTensor] = []
        self._restore: list[Callable[[], object]] = []
        self._draws: _Draws | None = None
        self._called = False

    @contextmanager
    def batch(self, *, trial: bool = False) -> Iterator[None]:
        """A context within which, and after which, what calls leave behind is put back.

        Args:
            trial: whether tensors that may change are put back too, and draws are those of the caller.
        """
        before = self._before = Attributes(self._model, self._last, loss=self.followed, buffers=self._buffers)
        self._last, self._called = before, False
        self._tensors = [_PublicTensor(owner, name) for owner, name in self._public()]
        parameters = Parameters(self._model)
        same_dtype = functools.partial(torch.set_default_dtype, torch.get_default_dtype())
        self._restore = [
            before.put_back,
            same_dtype,
            *(tensor.put_back for tensor in self._tensors),
            parameters.put_back,
        ]
        self._draws = None
        with ExitStack() as after:  # in the reverse order, whatever one of them refuses
            if self._seeds is not None and not trial:
                self._draws = _Draws(before.generators, secret=self._seeds == "secret")
                after.callback(self._draws.settle)
            for tensor in self._tensors:
                after.callback(tensor.put_back if trial else tensor.settle)
            after.callback(parameters.settle)
            after.callback(same_dtype)
            after.callback(before.put_back)
            after.callback(setattr, self, "_before", None)
            yield
        before.check()

    @property
    def generators(self) -> list[Any]:
        """Generators of random numbers that were found, within `batch`."""
        return [] if self._before is None else self._before.generators

    def next_part(self) -> None:
        """Draw other numbers in the calls that follow. Calls within a part draw the same."""
        if self._draws is not None:
            self._draws.next_part()

    def __call__(self, model: Callable[..., Any], *args: Any, **kwargs: Any) -> Tensor:
        """The loss of one example."""
        if self._called and self._before is not None:
            self._check()
            for restore in self._restore:
                restore()
        if self._draws is not None:
            self._draws.begin()
        value = self._loss(model, *args, **kwargs)
        if not self._called:
            for tensor in self._tensors:
                tensor.note()
        self._called = True
        return value


class _Draws:
    """What global generators, and others, draw in the parts of a batch.

    A call may seed any of them, also with the number that it was seeded with before, or put one into an
    earlier state. So all get new seeds for every part.
    """

    def __init__(self, found: Sequence[Any], *, secret: bool) -> None:
        every = [*global_generators(), *found]
        secrets = [random.randbytes(32) if secret else drawn(one) for one in every]
        self._every = list(zip(every, secrets, strict=True))
        self._before = [stored(one) for one in every]
        self._of_part: list[Callable[[], object]] = list(self._before)
        self._part = 0

    def next_part(self) -> None:
        """Begin another part; outside of vmap, under which states of torch's generators cannot be read."""
        self._part += 1
        self._of_part = []
        for generator, secret in self._every:
            key = hashlib.blake2b(str(self._part).encode(), key=secret, digest_size=32).digest()
            if isinstance(generator, torch.Generator):
                seed(generator, key)
                self._of_part.append(stored(generator))
            else:  # which are seeded faster than restored
                self._of_part.append(functools.partial(seed, generator, key))

    def begin(self) -> None:
        """Begin a call, whatever was seeded or drawn in others of this part."""
        for restore in self._of_part:
            restore()

    def settle(self) -> None:
        """Undo what calls seeded and drew: a batch has drawn one secret of each."""
        for restore in self._before:
            restore()


class Parameters:
    """What calls can change in the parameters of a model apart from their values."""

    def __init__(self, model: nn.Module) -> None:
        self._all = [
            (param, param.requires_grad, dict(hooks_of(param)), param.grad)
            for param in {
                id(one): one for _, part in named_parts(model) for one in part._parameters.values()
            }.values()
            if param is not None
        ]
        for param, *_ in self._all:
            param.grad = None

    def put_back(self) -> None:
        """Restore hooks and whether they require gradients, and drop gradients."""
        for param, requires_grad, hooks, _ in self._all:
            if param.requires_grad is not requires_grad:
                param.requires_grad_(requires_grad)
            now = hooks_of(param)
            if now.keys() != hooks.keys():
                now.clear()
                now.update(hooks)
            if param.grad is not None:
                param.grad = None

    def settle(self) -> None:
        """Restore the gradients as well."""
        self.put_back()
        for param, _, _, grad in self._all:
            param.grad = grad


class _PublicTensor:
    """A tensor of the model that calls may change, once a batch: how many calls there are is private."""

    def __init__(self, owner: dict[str, Any], name: str) -> None:
        self._owner, self._name = owner, name
        self._tensor: Tensor | None = owner[name]
        self._copy = _contents(self._tensor)
        self._version = _version(self._tensor)
        self._first: tuple[Tensor | None, Tensor | None] | None = None

    def note(self) -> None:
        """Keep what the first call left."""
        now = self._owner.get(self._name)
        if now is not self._tensor or _version(now) != self._version:
            self._first = now, _contents(now)

    def put_back(self) -> None:
        """Restore what it was before the batch."""
        self._owner[self._name] = self._tensor
        if self._tensor is not None and self._copy is not None and self._tensor._version != self._version:
            with torch.no_grad():
                self._tensor.copy_(self._copy)
            self._version = self._tensor._version

    def settle(self) -> None:
        """Leave what the first call left."""
        self.put_back()
        if self._first is None:
            return
        tensor, contents = self._first
        self._owner[self._name] = tensor
        if tensor is not None and contents is not None:
            with torch.no_grad():
                tensor.copy_(contents)


def _contents(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach().clone()


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version
