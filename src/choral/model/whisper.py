"""The whole network, and how it is filled from a checkpoint."""

from __future__ import annotations

import torch
from torch import nn

from choral.model.checkpoint import Checkpoint
from choral.model.decoder import TextDecoder
from choral.model.dims import ModelDims
from choral.model.encoder import AudioEncoder


class Whisper(nn.Module):
    def __init__(self, dims: ModelDims) -> None:
        super().__init__()
        self.dims = dims
        self.encoder = AudioEncoder(dims)
        self.decoder = TextDecoder(dims)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, device: torch.device, dtype: torch.dtype) -> Whisper:
        """Fills the network tensor by tensor, so that the weights are never in memory twice."""
        checkpoint.validate()
        with torch.device("meta"):
            network = cls(checkpoint.dims)
        weights = {
            name: torch.tensor(checkpoint.tensors[name], dtype=dtype, device=device) for name in network.state_dict()
        }
        network.load_state_dict(weights, assign=True)
        return network.requires_grad_(False).eval()
