"""Unchanged: checks that no call wrote data into the model, and that only steps change its parameters."""

import contextlib
import functools
import hashlib
import io
import operator
import pickle
import secrets
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from dpmech.exceptions import InvalidParameterError, UnsupportedCombinationError
from dpmech.optim.deferred import Then, is_deferred
from dpmech.optim.processes import is_sharded, local_part
from dpmech.optim.state import HOOKS, hooks_of, is_own, named_parts, named_tensors, root

Contents = tuple[str, list[Tensor]]  # a description, and the checksums of the rows

# A row of 32-bit words w has the checksum sum_i k_i w_i mod 2^64, k_i uniform on 64 bits. If two rows
# differ, some difference of words is not divisible by 2^32, so that the sums agree for at most one in 2^33
# values of its k_i, whatever the other words are. The k_i are generated here and remain secret.
ROW = 4096
_PLAIN = (Tensor, nn.Parameter)  # subclasses may store their data elsewhere
_ROWS_AT_ONCE = {"cpu": 16}  # fits into the cache of a core; other devices process longer runs
_MANY_ROWS = 4096
_LAYOUTS = 8  # lists of sizes whose keys are kept


class Fingerprinter:
    """Detects whether tensors still have the same bits.

    Two different contents get the same checksums with a probability of at most 2^-33, over the key that
    every Fingerprinter generates. NaN, signed zeros, integers and packed formats are compared as bits.

    Args:
        key: secret and random, for checksums that agree in another process; None generates one.
    """

    def __init__(self, key: bytes | None = None) -> None:
        size = 8 * ROW
        words = secrets.token_bytes(size) if key is None else hashlib.shake_256(key).digest(size)
        self._key = torch.frombuffer(bytearray(words), dtype=torch.int64)
        self._key_on = functools.cache(self._key.to)
        self._layout = functools.lru_cache(maxsize=_LAYOUTS)(self._laid_out)

    def read_all(self, named: Sequence[tuple[str, Tensor]]) -> list[Contents]:
        """As `read` of each; on devices that queue operations, a few of them serve many tensors."""
        queued: dict[torch.device, list[int]] = {}
        for place, (_, tensor) in enumerate(named):
            if is_deferred(tensor.device) and _is_of_words(tensor):
                queued.setdefault(tensor.device, []).append(place)
        found: dict[int, Contents] = {}
        for places in queued.values():
            words = [named[place][1].detach().view(-1).view(torch.int32) for place in places]
            for place, sums in zip(places, self._sums_of_many(words), strict=True):
                found[place] = (_kind(named[place][1]), sums)
        return [
            found[place] if place in found else self.read(name, tensor)
            for place, (name, tensor) in enumerate(named)
        ]

    def _sums_of_many(self, words: Sequence[Tensor]) -> list[list[Tensor]]:
        """The checksums of the rows of tensors on one device: of their full rows, and of what is left."""
        device = words[0].device
        counts = [len(one) // ROW for one in words]
        full = [one[: count * ROW].view(count, ROW) for one, count in zip(words, counts, strict=True)]
        left = [one[count * ROW :] for one, count in zip(words, counts, strict=True)]
        rows, own = [torch.zeros(0, dtype=torch.int64, device=device)], self._key_on(device)
        waiting: list[Tensor] = []
        for part in [piece for one in full for piece in torch.split(one, _MANY_ROWS)]:
            if sum(map(len, waiting)) + len(part) > _MANY_ROWS:
                rows.append(_sums(torch.cat(waiting), own))
                waiting = []
            waiting.append(part)
        rows.append(_sums(torch.cat(waiting), own))
        keys, places = self._layout(device, tuple(map(len, left)))
        last = torch.zeros(len(words), dtype=torch.int64, device=device)
        last.index_add_(0, places, torch.cat(left) * keys)  # integers: exact in any order
        each = torch.cat(rows).split_with_sizes(counts)
        ends = zip(each, last[:, None].unbind(0), left, strict=True)
        return [[part, *([end] if len(rest) else [])] for part, end, rest in ends]

    def _laid_out(self, device: torch.device, sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
        """For tensors of these sizes in a row: the key of every word, and the number of its tensor."""
        keys = torch.cat([self._key[:size] for size in sizes])
        rows = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        return keys.to(device), rows.to(device)

    def read(self, name: str, tensor: Tensor) -> Contents:
        """The contents of a tensor; for a sharded one, the part of this process.

        Returns:
            A description and checksums, int64, one for each 16 KiB.

        Raises:
            UnsupportedCombinationError: for a tensor whose bits cannot be read.
        """
        if _is_plain(tensor):
            # The common case: a step reads hundreds of small tensors, where each call counts.
            words = tensor.detach().view(-1).view(torch.int32)
            return _kind(tensor), self._row_sums(words, None)
        parts = _strided(name, tensor)
        kind = f"{tensor.dtype} {[tuple(part.shape) for part in parts]}"
        return kind, [sums for part in parts for sums in self._row_sums(*_words(part))]

    def _row_sums(self, words: Tensor, rest: Tensor | None) -> list[Tensor]:
        key, size = self._key_on(words.device), words.numel()
        whole, sums = size // ROW, []
        if whole:
            rows = words[: whole * ROW].view(whole, ROW)
            step = _ROWS_AT_ONCE.get(words.device.type, _MANY_ROWS)
            sums = [_sums(rows[i : i + step], key) for i in range(0, whole, step)]
        if size % ROW:
            tail = words[whole * ROW :] if whole else words
            sums.append(_sums(tail[None], key[: size % ROW]))
        if rest is not None and rest.numel():
            sums.append(_sums(rest[None], key[: rest.numel()]))
        return sums


def _sums(rows: Tensor, key: Tensor) -> Tensor:
    """Products of int32 with int64, added modulo 2^64 along the rows."""
    if rows.device.type == "cpu":  # numpy has no need of the products in memory
        return torch.from_numpy(np.einsum("ij,j->i", rows.numpy(), key.numpy()))
    return (rows * key).sum(dim=1)


def same(one: Sequence[Contents], other: Sequence[Contents], later: list[Tensor] | None = None) -> bool:
    """Whether two lists of contents agree.

    Args:
        one: contents.
        other: contents.
        later: takes, of every device for which the host would wait, whether its contents differ, one value;
            they are not part of the answer then. None waits once per device.
    """
    if [(kind, len(sums)) for kind, sums in one] != [(kind, len(sums)) for kind, sums in other]:
        return False
    by_device: dict[torch.device, tuple[list[Tensor], list[Tensor]]] = {}
    for (_, now), (_, then) in zip(one, other, strict=True):
        for a, b in zip(now, then, strict=True):
            pair = by_device.setdefault(a.device, ([], []))
            pair[0].append(a)
            pair[1].append(b.to(a.device))
    for device, (now, then) in by_device.items():
        if later is not None and is_deferred(device):
            later.append((torch.cat(now) != torch.cat(then)).any().double()[None])
        elif not torch.equal(torch.cat(now), torch.cat(then)):
            return False
    return True


def _is_plain(tensor: Tensor) -> bool:
    """Whether its storage is its values in order, in float32."""
    return tensor.dtype == torch.float32 and _is_in_order(tensor)


def _is_of_words(tensor: Tensor) -> bool:
    """Whether its storage is its values in order, in words of 32 bits."""
    if not _is_in_order(tensor) or tensor.is_quantized:
        return False
    whole = tensor.numel() > 0 and tensor.numel() * tensor.element_size() % 4 == 0
    return whole and tensor.data_ptr() % 4 == 0


def _is_in_order(tensor: Tensor) -> bool:
    if type(tensor) not in _PLAIN or tensor.layout != torch.strided or tensor.is_meta:
        return False
    return not (tensor.is_neg() or tensor.is_conj()) and tensor.is_contiguous()


def _kind(tensor: Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)}"


def _words(part: Tensor) -> tuple[Tensor, Tensor | None]:
    """A strided tensor as 32-bit words, in the order of its indices, and up to three remaining bytes."""
    flat = part.contiguous().view(-1)
    if flat.element_size() >= 4:
        return flat.view(torch.int32), None
    raw = flat.view(torch.uint8)
    whole = len(raw) // 4 * 4
    words = raw[:whole]
    if words.storage_offset() % 4:
        words = words.clone()
    return words.view(torch.int32), raw[whole:].to(torch.int32)


def _strided(name: str, tensor: Tensor) -> list[Tensor]:
    """The strided tensors that represent a tensor."""
    if torch.nn.parameter.is_lazy(tensor):
        raise UnsupportedCombinationError(
            f"{name} has no shape yet (a lazy layer)",
            supported="one call of the model on an example before the optimizer is made",
        )
    one = local_part(tensor.detach())
    if one.device.type == "meta":
        return []
    if type(one) is not Tensor and hasattr(one, "__tensor_flatten__"):
        names: list[str] = one.__tensor_flatten__()[0]
        return [part for inner in names for part in _strided(name, getattr(one, inner))]
    if one.layout == torch.sparse_coo:
        return [one._indices(), one._values()]
    if one.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [one.crow_indices(), one.col_indices(), one.values()]
    if one.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [one.ccol_indices(), one.row_indices(), one.values()]
    if one.layout != torch.strided or one.is_quantized:
        raise UnsupportedCombinationError(
            f"{name} is of the layout {one.layout} and dtype {one.dtype}: writes of data into it by calls of "
            "the model cannot be detected",
            supported="tensors with strides, sparse tensors, and subclasses made of them",
        )
    return [one.resolve_conj().resolve_neg() if one.is_complex() or one.is_neg() else one]


# The newest watch of every module, kept alive by the module's hooks.
_WATCHES: "weakref.WeakKeyDictionary[nn.Module, weakref.ref[Unchanged]]" = weakref.WeakKeyDictionary()


class Unchanged:
    """Compares a model's tensors with their previous contents: only steps may change a model.

    A forward pass sees raw data. Anything that it writes into the model would be released without noise. So
    buffers, untrained parameters and extra states must stay, bit for bit, as they were when the
    model was made private; trained parameters must not change between two steps of the optimizer.
    Saving, pickling or copying the model runs the same check.

    `load_state_dict` may change trained parameters at any time, the others before the first step.
    Attributes of modules that are not tensors are not checked here (`MixingWatch`, `PerExampleModel`).

    Args:
        model: the model.
        trained: its parameters that the optimizer trains.
        public: names of buffers, other parameters and extra states that may change, as they do not depend on
            the data.

    Attributes:
        owner: returns the tensor that one of the model stands for, while parameters are gathered.
        handed_on: whether a later watch has taken over the model, or a part of it.
        changed_by_hand: number of changes of trained parameters other than by steps, after the first step.

    Raises:
        InvalidParameterError: if a public name does not exist.
        UnsupportedCombinationError: if a tensor cannot be read, or its contents do not come from the steps of
            an earlier run on the model.
    """

    def __init__(self, model: nn.Module, trained: Sequence[Tensor], public: Sequence[str] = ()) -> None:
        self._model = model
        self.handed_on = False
        self.owner: Callable[[Tensor], Tensor] = lambda tensor: tensor
        self._take_over()
        self._trained = list(trained)
        self._ids = {id(param) for param in self._trained}
        self._names = {
            name for name, param in model.named_parameters(remove_duplicate=False) if id(param) in self._ids
        }
        self._public = self._checked(public)
        self._fingerprinter = Fingerprinter()
        self._stepped = False
        self.changed_by_hand = 0
        self._then: dict[str, Contents] = {}
        self._stamps: dict[str, tuple[int, int]] = {}
        self._read()
        hooked: Any = model  # these methods are missing in torch's stubs
        hooked.register_load_state_dict_pre_hook(ModelHook(lambda *_: self.check()))
        hooked.register_load_state_dict_post_hook(ModelHook(lambda *_: self._loaded()))
        hooked.register_state_dict_pre_hook(ModelHook(lambda *_: self.check(), copied=self.check))
        for name, part in model.named_modules():
            if part is not model:
                self._watch_part(f"{name}.", part)

    def allow(self, names: Sequence[str]) -> None:
        """Let more buffers change, which do not depend on the data."""
        self._public |= self._checked(names)
        self._then = {name: known for name, known in self._then.items() if name not in self._public}

    def public_tensors(self) -> list[tuple[dict[str, Any], str]]:
        """The owners and names of the buffers and parameters that may change."""
        return [
            (held, name)
            for prefix, part in named_parts(self._model)
            for held in (part._parameters, part._buffers)
            for name in held
            if (f"{prefix}.{name}" if prefix else name) in self._public
        ]

    def check(self) -> None:
        """Compare all contents; does nothing after the model was made private again.

        Raises:
            UnsupportedCombinationError: if a tensor changed other than by a step, was added or removed.
        """
        for flags, then in self.check_later():
            then(flags.tolist())

    def check_later(self) -> list[tuple[Tensor, Then]]:
        """As `check`, except for values of a device for which the host would wait.

        Returns:
            Values, and functions that receive them as numbers and finish the check.
        """
        later: list[Tensor] = []
        if self.handed_on:
            return []
        refuse = self._compare(dict(self._held(extra=True)), whole=True, later=later)

        def then(flags: list[float]) -> None:
            if any(flags):
                refuse()

        return [(flag, then) for flag in later]

    def check_written(self) -> None:
        """As `check`, for tensors that changed in ways that torch's version counter shows; cheap."""
        if self.handed_on:
            return
        held = dict(self._held(extra=False))
        stamps = {name: _stamp(tensor) for name, tensor in held.items()}
        self._compare({name: held[name] for name in held if stamps[name] != self._stamps.get(name)})
        self._stamps.update(stamps)

    def digest(self, key: bytes, *, sharded: bool = True) -> str:
        """A checksum (hex) of all contents under a secret key: equal in every process with these contents.

        Args:
            key: secret and random.
            sharded: whether to include extra states, and tensors of which this process has a part.
        """
        reader, found = Fingerprinter(key), hashlib.blake2b(key=key, digest_size=32)
        for name, tensor in sorted(self._held(extra=sharded), key=operator.itemgetter(0)):
            if is_sharded(tensor) and not sharded:
                continue
            kind, sums = reader.read(name, tensor)
            found.update(f"{name} {kind} {len(sums)}".encode())
            if sums:
                found.update(torch.cat(sums).cpu().numpy().tobytes())
        return found.hexdigest()

    def modes(self) -> list[str]:
        """The dtype of autocast, if it is on, and the names of the parts of the model in eval mode."""
        kind = self._trained[0].device.type
        autocast = [str(torch.get_autocast_dtype(kind))] if torch.is_autocast_enabled(kind) else []
        return autocast + [name for name, part in named_parts(self._model) if not part.training]

    def names_in_order(self, params: Sequence[Tensor]) -> list[str]:
        """The names of parameters of the model, in the order in which they are given."""
        names = {id(param): name for name, param in self._model.named_parameters()}
        return [names[id(param)] for param in params]

    def check_newest(self) -> None:
        """Raise UnsupportedCombinationError if the model was made private again."""
        if self.handed_on:
            raise UnsupportedCombinationError(
                "the model was made private again since: it is trained by another optimizer",
                supported="steps of the newest optimizer of a model",
            )

    def note_step(self) -> None:
        """Note that the optimizer has changed the trained parameters."""
        self._stepped = True
        self.note_weights()

    def note_weights(self) -> None:
        """Accept the current values of the trained parameters as the reference."""
        trained = [(name, tensor) for name, tensor in self._held(extra=False) if id(tensor) in self._ids]
        for (name, tensor), contents in zip(trained, self._fingerprinter.read_all(trained), strict=True):
            self._then[name] = contents
            self._stamps[name] = _stamp(tensor)

    def _watch_part(self, prefix: str, part: nn.Module) -> None:
        """Run the check when a part of the model is saved or copied, too."""

        def own(*, written: bool = False) -> None:
            if self.handed_on:
                return
            held = {f"{prefix}{name}": tensor for name, tensor in named_tensors(part)}
            if not written:
                held |= {f"{prefix}{name}": _digest(name, state) for name, state in _extra_states(part)}
            self._compare(
                {
                    name: tensor
                    for name, tensor in held.items()
                    if name not in self._public and not (written and _stamp(tensor) == self._stamps.get(name))
                }
            )

        def saved(*given: Any) -> None:
            # Within a state dict of the whole model, which was checked, names begin with this prefix.
            own(written=len(given) > 1 and str(given[1]).endswith(prefix))

        hooked: Any = part
        hooked.register_state_dict_pre_hook(ModelHook(saved, copied=own))

    def _take_over(self) -> None:
        """End the watches of earlier runs on parts of the model, after a check of their contents."""
        for part in self._model.modules():
            earlier = _WATCHES.get(part, lambda: None)()
            if earlier is not None:
                earlier.check()
                earlier.handed_on = True
        for part in self._model.modules():
            _WATCHES[part] = weakref.ref(self)

    def _loaded(self) -> None:
        """Handle the end of `load_state_dict`, before which all contents were checked."""
        if self.handed_on:
            return
        if self._stepped:
            self.note_weights()
            self.changed_by_hand += 1
            self.check()
        else:
            self._read()

    def _read(self) -> None:
        held = list(self._held(extra=True))
        contents = self._fingerprinter.read_all(held)
        self._then = {name: known for (name, _), known in zip(held, contents, strict=True)}
        self._stamps = {name: _stamp(tensor) for name, tensor in self._held(extra=False)}

    def _held(self, *, extra: bool) -> Iterator[tuple[str, Tensor]]:
        """Every tensor of the model that is not public, under all of its names."""
        for name, tensor in named_tensors(self._model):
            if name not in self._public:
                yield name, self.owner(tensor)
        if extra:
            for name, state in _extra_states(self._model):
                if name not in self._public:
                    yield name, _digest(name, state)

    def _compare(
        self, held: dict[str, Tensor], *, whole: bool = False, later: list[Tensor] | None = None
    ) -> Callable[[], None]:
        """Refuse changes; returns what to call if one of the flags in `later` is set."""
        unique: dict[int, tuple[str, Tensor]] = {}
        for name, tensor in held.items():
            unique.setdefault(id(tensor), (name, tensor))  # tied tensors are read once
        contents = self._fingerprinter.read_all(list(unique.values()))
        now: dict[int, Contents] = dict(zip(unique, contents, strict=True))
        then = {name: self._then[name] for name in held if name in self._then}
        new = [name for name in held if name not in then]
        gone = [name for name in self._then if name not in held] if whole else []
        # A trained parameter that is no longer the one that the optimizer trains.
        replaced = [name for name in then if name in self._names and id(held[name]) not in self._ids]

        def refuse() -> None:
            differ = (name for name in then if not same([now[id(held[name])]], [then[name]]))
            self._refuse(list(dict.fromkeys([*replaced, *differ])), new, gone)

        if (
            new
            or gone
            or replaced
            or not same([now[id(held[name])] for name in then], [*then.values()], later)
        ):
            refuse()
        return refuse

    def _checked(self, public: Sequence[str]) -> frozenset[str]:
        known = [name for name, _ in self._model.named_buffers(remove_duplicate=False)]
        known += [
            name
            for name, _ in self._model.named_parameters(remove_duplicate=False)
            if name not in self._names
        ]
        known += [name for name, _ in _extra_states(self._model)]
        if isinstance(public, str) or not isinstance(public, Iterable) or not set(public) <= set(known):
            raise InvalidParameterError("public_buffers", public, f"names among {known}")
        return frozenset(public)

    def _refuse(self, changed: list[str], new: list[str], gone: list[str]) -> NoReturn:
        buffers = {name for name, _ in self._model.named_buffers(remove_duplicate=False)}
        trained = [name for name in changed if name in self._names]
        if trained:
            raise UnsupportedCombinationError(
                f"the trained parameters {', '.join(trained)} changed other than by a step of the "
                "optimizer: a forward pass that writes into them would release data without noise",
                supported="manual changes, computed from released values, by load_state_dict or followed "
                "by optimizer.note_weights()",
            )
        kinds = {
            "buffers": [name for name in changed if name in buffers],
            "extra states": [name for name in changed if name.endswith("_extra_state")],
            "parameters that are not trained,": [
                name for name in changed if name not in buffers and not name.endswith("_extra_state")
            ],
            "list of tensors by": new,
            "list of tensors, now without": gone,
        }
        listed = " and its ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items() if names)
        raise UnsupportedCombinationError(
            f"calling the model, or loading into it, changed its {listed}: they would carry data without "
            "noise into the released model",
            supported="layers without running statistics or memory; public_buffers for those that do not "
            "depend on the data; other frozen weights before make_private; after the last step, other layers "
            "(merged adapters) in a copy.deepcopy of the model",
        )


class Structure:
    """What a model consists of: submodules, hooks, and the parameters that require gradients.

    Tensors are compared by `Unchanged`. Without a loss nothing is put back after a call, so that a change
    would reach the other examples of the batch, and later batches.
    """

    def __init__(self, model: nn.Module) -> None:
        parts = list(model.modules())
        params = [param for part in parts for param in part._parameters.values() if param is not None]
        hooks = [getattr(part, name) for part in parts for name in HOOKS]
        self._found = {
            "submodules": [(id(part), *map(id, part._modules.values())) for part in parts],
            # Libraries register theirs at a first call (transformers, to return what layers give).
            "hooks": [key for held in hooks for key, hook in held.items() if is_own(root(hook))],
            "hooks of parameters": [list(hooks_of(param)) for param in params],
            "parameters that require gradients": [param.requires_grad for param in params],
        }

    def check(self, model: nn.Module) -> None:
        """Raise UnsupportedCombinationError if a call changed it."""
        now = Structure(model)._found
        changed = [name for name, found in self._found.items() if now[name] != found]
        if changed:
            raise UnsupportedCombinationError(
                f"calling the model changed its {' and its '.join(changed)}: the examples of a batch would "
                "decide how others are trained, without noise",
                supported="a model that is built before make_private, and changed in the loop between steps; "
                "or make_private(..., loss=...), which puts back what a call changed",
            )


class ModelHook:
    """A hook of a model that is dropped from copies and pickles of the model.

    Args:
        call: the function to run.
        copied: called first when the model is copied or pickled.
    """

    def __init__(
        self, call: Callable[..., object] | None = None, copied: Callable[[], object] | None = None
    ) -> None:
        self._call = call
        self._copied = copied

    def __call__(self, *args: object) -> None:
        """Run the function, unless this is a copy."""
        if self._call is not None:
            self._call(*args)

    def __deepcopy__(self, memo: object) -> "ModelHook":
        if self._copied is not None:
            self._copied()
        return ModelHook()

    def __reduce__(self) -> tuple[Any, ...]:
        if self._copied is not None:
            self._copied()
        return ModelHook, ()


def _stamp(tensor: Tensor) -> tuple[int, int]:
    """Identity of a tensor, and its number of writes counted by torch."""
    return id(tensor), 0 if tensor.is_inference() else tensor._version


def _extra_states(model: nn.Module) -> Iterator[tuple[str, object]]:
    """Extra states that modules add to a state dict."""
    for name, module in named_parts(model):
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            yield f"{name}._extra_state".lstrip("."), module.get_extra_state()


class _Bits(pickle.Pickler):
    """Pickles data, and tensors as their bits.

    Args:
        file: to which the bytes are written.
        trees: whether equal data are pickled alike, even if they contain an object twice; cycles are refused.
    """

    def __init__(self, file: io.BytesIO, *, trees: bool) -> None:
        super().__init__(file, protocol=4)
        self.fast = trees

    def reducer_override(self, value: Any) -> Any:
        """A tensor as its dtype, shape and bits; a file in memory as its contents."""
        if isinstance(value, io.BytesIO):
            return bytes, (value.getvalue(),)
        if not isinstance(value, Tensor):
            return NotImplemented
        flat = value.detach().cpu().contiguous().view(-1)
        return bytes, (
            f"{flat.dtype} {tuple(value.shape)}".encode(),
            flat.view(torch.uint8).numpy().tobytes(),
        )


def _digest(name: str, state: object) -> Tensor:
    """A fingerprint of plain data and tensors."""
    written = io.BytesIO()
    try:
        with contextlib.suppress(ValueError, RecursionError):  # of a cycle
            _Bits(written, trees=True).dump(state)
            return _hashed(written)
        written = io.BytesIO()
        _Bits(written, trees=False).dump(state)
        return _hashed(written)
    except Exception as error:  # an object that cannot be pickled may raise anything
        raise UnsupportedCombinationError(
            f"{name} cannot be read ({error}): writes of data into it by calls of the model cannot be "
            "detected",
            supported="extra states of plain data and tensors, or named in public_buffers",
        ) from error


def _hashed(written: io.BytesIO) -> Tensor:
    digest = hashlib.blake2b(written.getbuffer(), digest_size=32).digest()
    return torch.frombuffer(bytearray(digest), dtype=torch.uint8)
