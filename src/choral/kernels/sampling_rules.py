"""Whisper's decoding rules and the noise of draws as Triton functions, for the kernels that sample."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mix(bits):
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    return bits ^ (bits >> 31)


@triton.jit
def gumbel_noise(seed, step, tokens):
    """`kernels.gumbel.gumbel` in Triton."""
    counters = (step * 1048576 + tokens).to(tl.uint64)
    bits = _mix(_mix(seed.to(tl.uint64)) + counters * 0x9E3779B97F4A7C15)
    uniform = (bits & 0xFFFFFFFF).to(tl.float32) * 2.3283064365386963e-10
    uniform = tl.minimum(tl.maximum(uniform, 2.3283064365386963e-10), 0.9999999403953552)
    return -tl.log(-tl.log(uniform))


@triton.jit
def is_banned(
    tokens, slot, suppress_blank, timestamps, max_first_timestamp, recent, n_slots,
    EOT: tl.constexpr, SPACE: tl.constexpr, BEGIN: tl.constexpr,
):  # fmt: skip
    """Whisper's rules on blanks and timestamps; `engine.rules` explains them."""
    last, before_last = tl.load(recent + slot), tl.load(recent + n_slots + slot)
    last_timestamp, n_sampled = tl.load(recent + 2 * n_slots + slot), tl.load(recent + 3 * n_slots + slot)
    has_times = tl.load(timestamps + slot) != 0
    is_time, is_first = tokens >= BEGIN, n_sampled == 0
    after_time = has_times & (last >= BEGIN)
    is_pair = (before_last >= BEGIN) | (n_sampled < 2)
    is_start = (last >= BEGIN) & (before_last < BEGIN) & (n_sampled >= 2)
    earliest = last_timestamp + tl.where(is_start, 0, 1)
    is_late = is_first & (tokens > tl.load(max_first_timestamp + slot))
    banned = is_first & (tl.load(suppress_blank + slot) != 0) & ((tokens == SPACE) | (tokens == EOT))
    banned |= is_time & has_times & ((after_time & is_pair) | (tokens < earliest) | is_late)
    banned |= (tokens < EOT) & after_time & (is_pair == 0)
    banned |= (is_time == 0) & has_times & is_first
    return banned
