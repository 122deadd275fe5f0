"""Independent random streams: every use of the seeds of one call has a separate stage, listed here.

A stream is keyed by (stage, block) and, within a block, by the quantity that is drawn. Streams of different
keys of one `SeedSequence` are independent, so that a sample of one stage is independent of every other stage
as long as no two stages share a key. All keys are created by the two functions below.
"""

import enum
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


@enum.unique
class Stage(enum.IntEnum):
    """Purpose of a sample: the first word of the key. The next one is the index of the block."""

    REMOVE_ROUND_1 = 1
    REMOVE_ROUND_2 = 2
    REMOVE_ROUND_3 = 3
    REMOVE_ROUND_4 = 4
    REMOVE_ROUND_5 = 5
    REMOVE_SIZING = 50
    REMOVE_MAIN = 60
    REMOVE_ENLARGED = 61
    ADD_ROUND_1 = 101
    ADD_ROUND_2 = 102
    ADD_ROUND_3 = 103
    ADD_ROUND_4 = 104
    ADD_ROUND_5 = 105
    ADD_SIZING = 150
    ADD_MAIN = 160
    ADD_ENLARGED = 161
    RESPONSIBILITIES = 200


class DirectionStages(NamedTuple):
    """The stages of one direction.

    Attributes:
        rounds: pilot rounds that set the probabilities of a mixture, in order.
        sizing: the sample that sets sizes and stakes, or the start of a search.
        main: the sample that determines the result.
        enlarged: its replacement if the main sample did not show its tail.
    """

    rounds: tuple[Stage, ...]
    sizing: Stage
    main: Stage
    enlarged: Stage


REMOVE = DirectionStages(
    rounds=(
        Stage.REMOVE_ROUND_1,
        Stage.REMOVE_ROUND_2,
        Stage.REMOVE_ROUND_3,
        Stage.REMOVE_ROUND_4,
        Stage.REMOVE_ROUND_5,
    ),
    sizing=Stage.REMOVE_SIZING,
    main=Stage.REMOVE_MAIN,
    enlarged=Stage.REMOVE_ENLARGED,
)
ADD = DirectionStages(
    rounds=(Stage.ADD_ROUND_1, Stage.ADD_ROUND_2, Stage.ADD_ROUND_3, Stage.ADD_ROUND_4, Stage.ADD_ROUND_5),
    sizing=Stage.ADD_SIZING,
    main=Stage.ADD_MAIN,
    enlarged=Stage.ADD_ENLARGED,
)


@enum.unique
class RemoveDraw(enum.IntEnum):
    """Quantities that a block of the REMOVE mixture draws: the last word of the key."""

    NORMALS = 0
    CHOICES = 1
    STAR = 2
    FREE = 3
    TILTS = 4


@enum.unique
class AddDraw(enum.IntEnum):
    """Quantities that a block of the ADD mixture draws: the last word of the key."""

    NORMALS = 0
    CHOICES = 1
    TILTS = 2


def stage_seed(entropy: Sequence[int], stage: Stage, *block: int) -> np.random.SeedSequence:
    """Return the seed of a stage, or of one of its blocks."""
    return np.random.SeedSequence(entropy, spawn_key=(int(stage), *block))


def generator(seed: np.random.SeedSequence, draw: RemoveDraw | AddDraw) -> np.random.Generator:
    """The stream of one draw of a block: the result of `seed.spawn` at that position of a fresh seed."""
    return np.random.default_rng(np.random.SeedSequence(seed.entropy, spawn_key=(*seed.spawn_key, int(draw))))
