"""Write toeplitz_65536.json: sensitivity, RMSE and MaxSE of Toeplitz strategies at n = 65,536, to 50 digits.

Run `python tests/reference/make_toeplitz.py` (about two minutes). It uses mpmath alone.
"""

import datetime
import json
import pathlib

import mpmath as mp

N = 65536
DIGITS = 50
FILE = pathlib.Path(__file__).with_name("toeplitz_65536.json")

BLT_DECAYS = (0.99527, 0.87344, 0.42784)
BLT_SCALES = (0.1293, 0.2059, 0.1672)
BANDED = (1.0, -0.5, 0.25, -0.1)


def quotient(numerator, denominator, n):
    """First n coefficients of numerator(x) / denominator(x)."""
    result = []
    for t in range(n):
        value = numerator[t] if t < len(numerator) else mp.mpf(0)
        for i in range(1, min(t, len(denominator) - 1) + 1):
            value -= denominator[i] * result[t - i]
        result.append(value / denominator[0])
    return result


def binomial_series(exponent, n):
    """First n coefficients of (1 - x)^exponent."""
    result = [mp.mpf(1)]
    for t in range(1, n):
        result.append(result[-1] * (t - 1 - exponent) / t)
    return result


def product(roots):
    """Coefficients of prod (1 - r x)."""
    result = [mp.mpf(1)]
    for root in roots:
        padded = [*result, mp.mpf(0)]
        result = [padded[i] - (root * padded[i - 1] if i else 0) for i in range(len(padded))]
    return result


def strategies():
    """Name -> (C's first column, the first column of C^-1), each of length N, zeros left out."""
    one, half = mp.mpf(1), mp.mpf(1) / 2
    lam = mp.mpf(0.9)
    yield "LambdaCGD 0.9", quotient([one], [one, -lam], N), [one, -lam]
    yield "SquareRoot", binomial_series(-half, N), binomial_series(half, N)
    short = binomial_series(-half, 64)
    yield "SquareRoot 64", short, quotient([one], short, N)
    short = binomial_series(half, 16)
    yield "InverseSquareRoot 16", quotient([one], short, N), short
    decays = [mp.mpf(value) for value in BLT_DECAYS]
    denominator = product(decays)
    numerator = list(denominator)
    for j, scale in enumerate(BLT_SCALES):
        for i, value in enumerate(product(decays[:j] + decays[j + 1 :])):
            numerator[i + 1] += mp.mpf(scale) * value
    yield "BLT", quotient(numerator, denominator, N), quotient(denominator, numerator, N)
    banded = [mp.mpf(value) for value in BANDED]
    yield "BandedToeplitz", banded, quotient([one], banded, N)


def leftmost_norm(coefs, min_sep, count):
    """Norm of the sum of the columns 0, b, ..., (k - 1) b."""
    total, sums = mp.mpf(0), [mp.mpf(0)] * N
    for t in range(N):
        value = coefs[t] if t < len(coefs) else mp.mpf(0)
        if t >= min_sep:
            value += sums[t - min_sep]
        if t >= min_sep * count and t - min_sep * count < len(coefs):
            value -= coefs[t - min_sep * count]
        sums[t] = value
        total += value**2
    return mp.sqrt(total)


def errors(inverse):
    """||B||_F / sqrt(n) and the largest row norm of B = A C^-1."""
    partial, row, total = mp.mpf(0), mp.mpf(0), mp.mpf(0)
    for t in range(N):
        if t < len(inverse):
            partial += inverse[t]
        row += partial**2
        total += row
    return mp.sqrt(total / N), mp.sqrt(row)


def main():
    mp.mp.dps = DIGITS + 20
    cases = []
    for name, coefs, inverse in strategies():
        mean, largest = errors(inverse)
        for min_sep, count in ((4096, 16), (4000, 10)):
            sens = leftmost_norm(coefs, min_sep, count)
            values = {"sensitivity": sens, "rmse": sens * mean, "max_se": sens * largest}
            cases.append(
                {"strategy": name, "min_sep": min_sep, "max_participations": count}
                | {key: mp.nstr(value, DIGITS) for key, value in values.items()}
            )
    document = {
        "source": f"mpmath {mp.__version__}, {mp.mp.dps} digits carried, {DIGITS} stored",
        "command": "python tests/reference/make_toeplitz.py",
        "date": datetime.datetime.now(tz=datetime.UTC).date().isoformat(),
        "n": N,
        "digits": DIGITS,
        "cases": cases,
    }
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
