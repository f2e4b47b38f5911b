"""The encoder as a GPU likes it: all windows in one product, convolutions included, little between the products."""

from __future__ import annotations

from torch import Tensor, nn

from choral.kernels.fp8 import quantize_rows
from choral.kernels.norm import add_and_norm, add_and_norm_fp8
from choral.model.encoder import AudioEncoder, EncoderBlock
from choral.model.gpu_layers import Added, BytesLinear, Joined, LinearGelu, attend, linears


class Convolution:
    """Over three neighbouring frames, with GELU, as one product: the neighbours are laid side by side first."""

    def __init__(self, layer: nn.Conv1d) -> None:
        self.stride = layer.stride[0]
        assert layer.bias is not None
        self.product = LinearGelu(layer.weight.transpose(1, 2).flatten(1).contiguous(), layer.bias)  # [out, 3 * in]

    def __call__(self, frames: Tensor) -> Tensor:  # [n, frames, in] → [n, frames / stride, out]
        n, n_frames, n_in = frames.shape
        padded = nn.functional.pad(frames, (0, 0, 1, 1))
        n_out = n_frames // self.stride
        strides = (padded.stride(0), self.stride * n_in, 1)
        neighbours = padded.as_strided((n, n_out, 3 * n_in), strides).reshape(n * n_out, 3 * n_in)
        return self.product(neighbours).view(n, n_out, -1)


class GpuEncoderBlock:
    def __init__(self, block: EncoderBlock) -> None:
        query, key, value, out = linears(block.attn.query, block.attn.key, block.attn.value, block.attn.out)
        wide, narrow = linears(block.mlp[0], block.mlp[2])
        self.n_head = block.attn.n_head
        self.attn_ln, self.mlp_ln = block.attn_ln, block.mlp_ln
        self.qkv, self.out = Joined(query, key, value), Added(out)
        self.wide, self.narrow = LinearGelu(wide.weight, wide.bias), Added(narrow)

    def __call__(self, x: Tensor, added: Tensor | None, n_windows: int) -> Tensor:  # x is [n * frames, state]
        normed = add_and_norm(x, added, self.attn_ln.weight, self.attn_ln.bias)
        added = self.out(x, attend_all(self.qkv(normed), n_windows, self.n_head))
        normed = add_and_norm(x, added, self.mlp_ln.weight, self.mlp_ln.bias)
        return self.narrow(x, self.wide(normed))


class BytesEncoderBlock:
    """The same with products in fp8."""

    def __init__(self, block: EncoderBlock) -> None:
        plain = GpuEncoderBlock(block)
        self.n_head, self.attn_ln, self.mlp_ln = plain.n_head, plain.attn_ln, plain.mlp_ln
        layers = (plain.qkv, plain.out, plain.wide, plain.narrow)
        self.qkv, self.out, self.wide, self.narrow = (BytesLinear(layer.weight, layer.bias) for layer in layers)

    def __call__(self, x: Tensor, added: Tensor | None, n_windows: int) -> Tensor:
        qkv = self.qkv(add_and_norm_fp8(x, added, self.attn_ln.weight, self.attn_ln.bias))
        added = self.out(quantize_rows(attend_all(qkv, n_windows, self.n_head)))
        wide = self.wide(add_and_norm_fp8(x, added, self.mlp_ln.weight, self.mlp_ln.bias))
        return self.narrow(quantize_rows(wide, gelu=True))


def attend_all(qkv: Tensor, n_windows: int, n_head: int) -> Tensor:  # [n * frames, 3 * state] → [n * frames, state]
    """Every frame attends to all of its window."""
    q, k, v = qkv.view(n_windows, -1, 3, n_head, qkv.shape[1] // (3 * n_head)).permute(2, 0, 3, 1, 4)
    return attend(q, k, v).transpose(1, 2).reshape(len(qkv), -1)


class GpuEncoder:
    def __init__(self, encoder: AudioEncoder, *, fp8: bool = False) -> None:
        self.conv1, self.conv2 = Convolution(encoder.conv1), Convolution(encoder.conv2)
        self.positions = encoder.positional_embedding
        self.blocks = [BytesEncoderBlock(block) if fp8 else GpuEncoderBlock(block) for block in encoder.blocks]
        self.ln_post = encoder.ln_post

    def __call__(self, mel: Tensor) -> Tensor:  # [n, 2 * frames, mels] → [n, frames, state]
        n_windows = len(mel)
        heard = self.conv2(self.conv1(mel.to(self.positions.dtype)))
        x = (heard + self.positions).flatten(0, 1)
        added: Tensor | None = None
        for block in self.blocks:
            added = block(x, added, n_windows)
        normed = add_and_norm(x, added, self.ln_post.weight, self.ln_post.bias)
        return normed.view(n_windows, -1, x.shape[1])
