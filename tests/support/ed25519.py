"""Ed25519 as RFC 8032 writes it down, with integers: whether a signature holds, by no package at all."""

import hashlib

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT = pow(2, (P - 1) // 4, P)


def decoded(text):
    """A point from its 32 bytes (section 5.1.3)."""
    number = int.from_bytes(text, "little")
    y, sign = number & (2**255 - 1), number >> 255
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * ROOT % P
    assert (x * x - square) % P == 0
    return (x if x & 1 == sign else P - x), y


def added(one, other):
    """The sum of two points."""
    (x1, y1), (x2, y2) = one, other
    cross = D * x1 * x2 * y1 * y2 % P
    x = (x1 * y2 + x2 * y1) * pow(1 + cross, -1, P) % P
    return x, (y1 * y2 + x1 * x2) * pow(1 - cross, -1, P) % P


def times(number, point):
    """A multiple of a point."""
    total = (0, 1)
    while number:
        total = added(total, point) if number & 1 else total
        point, number = added(point, point), number >> 1
    return total


BASE = decoded((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def holds(public, signature, message):
    """Whether s B = R + k A (section 5.1.7)."""
    s = int.from_bytes(signature[32:], "little")
    k = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % ORDER
    return s < ORDER and times(s, BASE) == added(decoded(signature[:32]), times(k, decoded(public)))
