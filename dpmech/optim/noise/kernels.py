"""The kernel that adds a row of noise to all sums of a device, in Triton; imported only where triton is.

A program has one tile of a vector: a lane computes one unit of words, that is eight normal numbers, in
registers, combines them as the recursions of `rows` do, adds them to the sum and divides. Only sums, results
and states pass through memory. Every operation is the one of the plain path (`pairs`, `rows`, `addition`), in
its order and rounded alike, so that the bits are the same; it is launched with enable_fp_fusion=False, else
products are fused with the sums that they enter.
"""

import math

import triton
import triton.language as tl

from dpmech.optim.noise import normals, pairs
from dpmech.optim.noise.rows import Kind

REGENERATED = tl.constexpr(Kind.REGENERATED.value)
SUBSTITUTION = tl.constexpr(Kind.SUBSTITUTION.value)
EXPONENTIALS = tl.constexpr(Kind.EXPONENTIALS.value)
LANES = tl.constexpr(pairs.LANES)

_TILE = tl.constexpr(pairs.TILE)
_K0, _K1, _K2, _K3 = (tl.constexpr(word) for word in pairs.CHACHA_CONSTANTS)
_ROUNDS = tl.constexpr(pairs.CHACHA_ROUNDS)
_ONES = tl.constexpr(2**64 - 1)
_SQRT_HALF = tl.constexpr(normals.SQRT_HALF)
_LN2 = tl.constexpr(math.log(2.0))
_HALF_TURN = tl.constexpr(normals.HALF_TURN)
_ATANH = tl.constexpr(tuple(normals.ATANH))
_SIN = tl.constexpr(tuple(normals.SIN))
_COS = tl.constexpr(tuple(normals.COS))


@triton.jit
def _rotate(word, PLACES: tl.constexpr):
    return (word << PLACES) | (word >> (32 - PLACES))


@triton.jit
def _quarter(a, b, c, d):
    a = a + b
    d = _rotate(d ^ a, 16)
    c = c + d
    b = _rotate(b ^ c, 12)
    a = a + b
    d = _rotate(d ^ a, 8)
    c = c + d
    b = _rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def _joined(low, high):
    return (high.to(tl.uint64) << 32) | low.to(tl.uint64)


@triton.jit
def _chacha(key, unit, step, parameter, shard):
    """Eight words: a block of ChaCha20."""
    zero = unit ^ unit
    s0, s1, s2, s3 = zero + _K0, zero + _K1, zero + _K2, zero + _K3
    s4 = zero + tl.load(key).to(tl.uint32)
    s5 = zero + tl.load(key + 1).to(tl.uint32)
    s6 = zero + tl.load(key + 2).to(tl.uint32)
    s7 = zero + tl.load(key + 3).to(tl.uint32)
    s8 = zero + tl.load(key + 4).to(tl.uint32)
    s9 = zero + tl.load(key + 5).to(tl.uint32)
    s10 = zero + tl.load(key + 6).to(tl.uint32)
    s11 = zero + tl.load(key + 7).to(tl.uint32)
    s13 = zero + step.to(tl.uint32)
    s14 = zero + parameter.to(tl.uint32)
    s15 = zero + shard.to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = s0, s1, s2, s3, s4, s5, s6, s7
    x8, x9, x10, x11, x12, x13, x14, x15 = s8, s9, s10, s11, unit, s13, s14, s15
    for _ in range(_ROUNDS):
        x0, x4, x8, x12 = _quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = _quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = _quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = _quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = _quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = _quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = _quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = _quarter(x3, x4, x9, x14)
    return (
        _joined(x0 + s0, x1 + s1),
        _joined(x2 + s2, x3 + s3),
        _joined(x4 + s4, x5 + s5),
        _joined(x6 + s6, x7 + s7),
        _joined(x8 + s8, x9 + s9),
        _joined(x10 + s10, x11 + s11),
        _joined(x12 + unit, x13 + s13),
        _joined(x14 + s14, x15 + s15),
    )


@triton.jit
def _horner(COEFS: tl.constexpr, x, COUNT: tl.constexpr):
    total = x * COEFS[0]
    for k in tl.static_range(1, COUNT - 1):
        total = (total + COEFS[k]) * x
    return total + COEFS[COUNT - 1]


@triton.jit
def _radius(word, low):
    bits = (word.to(tl.float64) + low).to(tl.int64, bitcast=True)
    exponent = (bits - _SQRT_HALF) >> 52
    fraction = (bits - (exponent << 52)).to(tl.float64, bitcast=True) - 1.0
    near = ((word ^ _ONES).to(tl.float64) + (1.0 - low)) * -5.421010862427522e-20  # 2^-64
    fraction = tl.where(exponent == 64, near, fraction)
    fraction = fraction / (fraction + 2.0)
    square = fraction * fraction
    series = (_horner(_ATANH, square, 10) * square + 2.0) * fraction
    log = (64 - exponent).to(tl.float64) * _LN2 - series
    return tl.sqrt(log + log)


@triton.jit
def _pair(first, second):
    low = ((second & 0xFFFF).to(tl.float64) + 0.5) * 1.52587890625e-05  # 2^-16
    radius = _radius(first, low)
    half = (((second << 1).to(tl.int64, bitcast=True) >> 1).to(tl.float64) + 0.5) * _HALF_TURN
    square = half * half
    sine = _horner(_SIN, square, 8) * square * half + half
    cosine = _horner(_COS, square, 9) * square + 1.0
    product = sine * cosine
    turned = (cosine - sine) * (cosine + sine)
    turned = tl.where(second.to(tl.int64, bitcast=True) < 0, -turned, turned)
    return radius * turned, radius * (product + product)


@triton.jit
def _normals(key, unit, step, parameter, shard):
    """The eight numbers of a unit, in float64."""
    w0, w1, w2, w3, w4, w5, w6, w7 = _chacha(key, unit, step, parameter, shard)
    z0, z1 = _pair(w0, w1)
    z2, z3 = _pair(w2, w3)
    z4, z5 = _pair(w4, w5)
    z6, z7 = _pair(w6, w7)
    return z0, z1, z2, z3, z4, z5, z6, z7


@triton.jit
def _pointer(address, WIDE: tl.constexpr):
    if WIDE:
        return address.to(tl.pointer_type(tl.float64))
    else:
        return address.to(tl.pointer_type(tl.float32))


@triton.jit
def _past(vector, place, size, PLACE: tl.constexpr):
    """Values of the state."""
    here = place + PLACE * LANES
    return tl.load(vector + here, mask=here < size, other=0.0)


@triton.jit
def _nearest(x):
    """The nearest integer, of two the even one."""
    size = tl.abs(x)
    rounded = (size + 4503599627370496.0) - 4503599627370496.0  # 2^52
    rounded = tl.where(size < 4503599627370496.0, rounded, size)
    return tl.where(x < 0.0, -rounded, rounded)


@triton.jit
def _release(total, out, here, inside, noise, lattice, divisor, LATTICE: tl.constexpr, DIVIDED: tl.constexpr):
    """Add the noise to values of the sum, and store the result."""
    value = tl.load(total + here, mask=inside, other=0.0).to(tl.float64)
    if LATTICE:
        inverse = 1.0 / lattice
        rest = value * inverse
        whole = _nearest(rest)
        value = (_nearest(noise * inverse + (rest - whole)) + whole) * lattice + 0.0
    else:
        value = value + noise
    if DIVIDED:
        value = value / divisor
    tl.store(out + here, value.to(out.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["step", "width", "slot"])
def add_rows(
    programs,  # int32, two a program: row of the tables below, and tile of its vector
    sizes,  # int64: number of values
    positions,  # int64, two a vector: parameter and shard
    sums,  # int64: addresses of the sums
    outs,  # int64: addresses of the results, which may be the sums
    states,  # int64, VECTORS a vector: addresses of its state
    factors,  # float64, four a vector: of the weights, of the row, the step of the lattice, the divisor
    weights,  # float64: of the row; for exponentials first the weights, then the decays
    key,  # int64: words of the key
    step,
    width,  # number of weights
    slot,  # vector of the state that this step overwrites
    KIND: tl.constexpr,
    VECTORS: tl.constexpr,
    WIDE_SUM: tl.constexpr,
    WIDE_OUT: tl.constexpr,
    LATTICE: tl.constexpr,
    DIVIDED: tl.constexpr,
):
    """Write the sums with row `step` added, divided, and advance the state."""
    program = tl.program_id(0).to(tl.int64)
    vector = tl.load(programs + 2 * program)
    tile = tl.load(programs + 2 * program + 1).to(tl.int64)
    size = tl.load(sizes + vector)
    parameter, shard = tl.load(positions + 2 * vector), tl.load(positions + 2 * vector + 1)
    total = _pointer(tl.load(sums + vector), WIDE_SUM)
    out = _pointer(tl.load(outs + vector), WIDE_OUT)
    factor = tl.load(factors + 4 * vector)
    final = tl.load(factors + 4 * vector + 1)
    lattice = tl.load(factors + 4 * vector + 2)
    divisor = tl.load(factors + 4 * vector + 3)
    lane = tl.arange(0, LANES)
    unit = (tile * LANES + lane).to(tl.uint32)
    place = tile * _TILE + lane
    step = step.to(tl.int64)

    z = _normals(key, unit, step, parameter, shard)
    if KIND == EXPONENTIALS:
        kept, shares, decays = (), (), ()  # lists would not be compiled
        for v in tl.static_range(VECTORS):
            kept += (_pointer(tl.load(states + VECTORS * vector + v), WIDE=True),)
            shares += (-tl.load(weights + v),)
            decays += (tl.load(weights + VECTORS + v),)
        for k in tl.static_range(8):
            here = place + k * LANES
            inside = here < size
            row = z[k]
            buffers = ()
            for v in tl.static_range(VECTORS):
                buffer = tl.load(kept[v] + here, mask=inside, other=0.0)
                row = row + buffer * shares[v]
                buffers += (buffer,)
            for v in tl.static_range(VECTORS):
                changed = buffers[v] * decays[v] + row
                tl.store(kept[v] + here, changed, mask=inside)
            _release(total, out, here, inside, row * final, lattice, divisor, LATTICE, DIVIDED)
    else:
        first = tl.load(weights) * factor
        r0, r1, r2, r3 = z[0] * first, z[1] * first, z[2] * first, z[3] * first
        r4, r5, r6, r7 = z[4] * first, z[5] * first, z[6] * first, z[7] * first
        for lag in range(1, width):
            weight = tl.load(weights + lag) * factor
            if KIND == REGENERATED:
                if weight != 0.0:
                    p0, p1, p2, p3, p4, p5, p6, p7 = _normals(key, unit, step - lag, parameter, shard)
                    r0, r1, r2, r3 = r0 + p0 * weight, r1 + p1 * weight, r2 + p2 * weight, r3 + p3 * weight
                    r4, r5, r6, r7 = r4 + p4 * weight, r5 + p5 * weight, r6 + p6 * weight, r7 + p7 * weight
            elif (KIND == SUBSTITUTION) | (weight != 0.0):
                # The vector of lag steps ago.
                past = (slot + VECTORS - lag % VECTORS) % VECTORS
                old = _pointer(tl.load(states + VECTORS * vector + past), WIDE=True)
                r0 = r0 + _past(old, place, size, 0) * weight
                r1 = r1 + _past(old, place, size, 1) * weight
                r2 = r2 + _past(old, place, size, 2) * weight
                r3 = r3 + _past(old, place, size, 3) * weight
                r4 = r4 + _past(old, place, size, 4) * weight
                r5 = r5 + _past(old, place, size, 5) * weight
                r6 = r6 + _past(old, place, size, 6) * weight
                r7 = r7 + _past(old, place, size, 7) * weight
        rows = (r0, r1, r2, r3, r4, r5, r6, r7)
        for k in tl.static_range(8):
            here = place + k * LANES
            inside = here < size
            if VECTORS > 0:
                now = _pointer(tl.load(states + VECTORS * vector + slot), WIDE=True)
                if KIND == SUBSTITUTION:
                    tl.store(now + here, rows[k], mask=inside)
                else:
                    tl.store(now + here, z[k], mask=inside)
            _release(total, out, here, inside, rows[k] * final, lattice, divisor, LATTICE, DIVIDED)
