"""Faults of 5 %, put into the code for a while: the check of neighbouring data sets has to find each."""

import contextlib
from unittest import mock

from dpmech.optim.clipping import ClippedSum, Clipping, Factored, per_example
from dpmech.optim.clipping import clipped_sum as batch_sum
from dpmech.optim.clipping.styles import Blocks
from dpmech.optim.noise import stream

_MORE = 1.05


@contextlib.contextmanager
def _long_clip_norm():
    """Examples are clipped to 1.05 times the norm to which the noise is scaled."""
    with contextlib.ExitStack() as patched:
        for kind in Clipping.__subclasses__():
            blocks = kind.blocks

            def longer(self, count, blocks=blocks):
                found = blocks(self, count)
                return Blocks(found.members, tuple(_MORE * norm for norm in found.clip_norms))

            patched.enter_context(mock.patch.object(kind, "blocks", longer))
        yield


@contextlib.contextmanager
def _a_row_counts_more():
    """The first and the last row of what is clipped at once count 1.05 times."""
    original = batch_sum.clip_and_sum

    def more(samples, blocks, *, scale=1.0):
        found = original(samples, blocks, scale=scale)
        for row in {0, found.examples - 1} if found.examples else ():
            one = [None if sample is None else _dense(sample)[row : row + 1 or None] for sample in samples]
            own = original(one, blocks, scale=scale)
            for total, part in zip(found.sums, own.sums, strict=True):
                if total is not None:
                    total.add_(part, alpha=_MORE - 1.0)
        return found

    with (
        mock.patch.object(batch_sum, "clip_and_sum", more),
        mock.patch.object(per_example, "clip_and_sum", more),
    ):
        yield


def _dense(sample):
    return sample.formed() if isinstance(sample, Factored) else sample


@contextlib.contextmanager
def _short_noise():
    """The noise is scaled to a clip norm that is 5 % too small."""
    original = stream.resolved_norms
    with mock.patch.object(
        stream, "resolved_norms", lambda *given: [one / _MORE for one in original(*given)]
    ):
        yield


@contextlib.contextmanager
def _long_sum():
    """Sums that were clipped elsewhere are taken for 1.05 times what they are."""
    take = batch_sum.Accumulator.take

    def longer(self):
        return [_MORE * total for total in take(self)]

    with mock.patch.object(batch_sum.Accumulator, "take", longer):
        yield


@contextlib.contextmanager
def _long_count():
    """An example moves the count of an AdaptiveClip by 1.05 halves."""
    take = batch_sum.Accumulator.take

    def longer(self):
        *sums, count = take(self)
        return [*sums, _MORE * count]

    with mock.patch.object(batch_sum.Accumulator, "take", longer):
        yield


@contextlib.contextmanager
def planted(name):
    """One of the faults; the library's own look at gross errors is off, so that it does not come first."""
    with mock.patch.object(ClippedSum, "__post_init__", return_value=None), PLANTS[name]():
        yield


PLANTS = {
    "long clip norm": _long_clip_norm,
    "a row counts 1.05 times": _a_row_counts_more,
    "noise 5 % short": _short_noise,
    "sum 5 % long": _long_sum,
    "count 5 % long": _long_count,
}
