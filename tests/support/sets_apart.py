"""All sets of steps that one example may join under b-min-sep sampling, with their probabilities."""


def sets_apart(n: int, apart: int, prob: float) -> dict[tuple[int, ...], float]:
    """After each step joined it waits apart - 1 steps; it joins every other step with probability prob.

    Before step 0 it waits for 0 steps with probability 1 / (1 + prob (apart - 1)), and for each of
    1, ..., apart - 1 with prob times that.
    """
    first, sets = 1.0 / (1.0 + prob * (apart - 1)), {}

    def follow(joined: tuple[int, ...], free: int, weight: float) -> None:
        if free >= n:
            sets[joined] = sets.get(joined, 0.0) + weight
            return
        follow((*joined, free), free + apart, weight * prob)
        if prob < 1.0:
            follow(joined, free + 1, weight * (1.0 - prob))

    for wait in range(apart):
        follow((), wait, first * (prob if wait else 1.0))
    return sets
