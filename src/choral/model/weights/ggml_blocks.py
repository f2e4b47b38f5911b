"""ggml's quantised tensors: blocks of 32 numbers that share a scale (and, in the _1 types, an offset).

The first 16 numbers of a block lie in the low halves of its bytes and the last 16 in the high halves; the 5-bit types
keep the fifth bits of all 32 in one word.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from choral.model.checkpoint import Array, Shape

BLOCK = 32


@dataclass(frozen=True)
class BlockType:
    bits: int
    has_offset: bool

    @property
    def n_bytes(self) -> int:
        """Bytes of a block."""
        return 2 + 2 * self.has_offset + BLOCK * self.bits // 8


BLOCK_TYPES = {
    2: BlockType(bits=4, has_offset=False),  # q4_0
    3: BlockType(bits=4, has_offset=True),  # q4_1
    6: BlockType(bits=5, has_offset=False),  # q5_0
    7: BlockType(bits=5, has_offset=True),  # q5_1
    8: BlockType(bits=8, has_offset=False),  # q8_0
}


def dequantized(data: Array, kind: BlockType, shape: Shape) -> Array:
    """float32 numbers from the bytes of whole blocks."""
    blocks = data.reshape(-1, kind.n_bytes)
    with np.errstate(all="ignore"):  # damaged scales are no worse here than damaged plain floats
        numbers = _numbers(blocks, kind) * _half(blocks, 0)
        if kind.has_offset:
            numbers += _half(blocks, 2)
    return numbers.reshape(shape)


def _numbers(blocks: Array, kind: BlockType) -> Array:
    """The whole numbers of every block, as int8."""
    if kind.bits == 8:
        return blocks[:, 2:].view(np.int8)
    numbers = _nibbles(blocks[:, -16:])
    if kind.bits == 5:
        numbers |= _fifth_bits(blocks[:, -20:-16])
    signed: Array = numbers.view(np.int8)
    return signed if kind.has_offset else signed - np.int8(2 ** (kind.bits - 1))


def _half(blocks: Array, start: int) -> Array:
    """One float16 of every block, as a column of float32."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def _nibbles(packed: Array) -> Array:
    return np.concatenate([packed & 0x0F, packed >> 4], axis=1)


def _fifth_bits(words: Array) -> Array:
    return np.unpackbits(words, axis=1, bitorder="little") << 4
