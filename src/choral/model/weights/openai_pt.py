"""OpenAI's own checkpoints, such as tiny.en.pt: dims and a state dict.

Fine-tunes saved as a plain state dict, under OpenAI's names or Hugging Face's, are read too: their dims are told by
the shapes of their tensors.
"""

from __future__ import annotations

from pathlib import Path

from choral.errors import ModelCorrupt
from choral.model import alignment_heads
from choral.model.checkpoint import Checkpoint, LazyTensor, printable, with_audio_positions
from choral.model.dims import ModelDims
from choral.model.weights.mapped_file import corrupt
from choral.model.weights.state_dict import dims_from_shapes, openai_name
from choral.model.weights.torch_file import read_torch_file

_OUTPUT_PROJECTION = "proj_out.weight"  # Hugging Face writes the token embedding a second time under this name


def open_openai_pt(path: Path) -> Checkpoint:
    content = read_torch_file(path)
    if not isinstance(content, dict):
        raise corrupt(path, "it holds no dictionary of tensors")
    state = next((content[key] for key in ("model_state_dict", "state_dict") if key in content), content)
    entries = named_tensors(state, path)
    try:
        dims = _dims(content["dims"]) if "dims" in content else dims_from_shapes(entries)
    except ModelCorrupt as error:
        raise corrupt(path, str(error)) from error
    heads = alignment_heads.for_model(dims, path.stem)
    return Checkpoint(dims, with_audio_positions(entries, dims), heads, None, path)


def named_tensors(state: object, path: Path) -> dict[str, LazyTensor]:
    """The tensors of a state dict under OpenAI's names."""
    if not isinstance(state, dict):
        raise corrupt(path, "it holds no dictionary of tensors")
    entries = {}
    for name, tensor in state.items():
        if not isinstance(name, str) or not isinstance(tensor, LazyTensor):
            raise corrupt(path, f"{printable(str(name))} in it is no tensor")
        if name != _OUTPUT_PROJECTION:
            entries[openai_name(name)] = tensor
    return entries


def _dims(given: object) -> ModelDims:
    fields = ModelDims.__dataclass_fields__
    if not isinstance(given, dict) or set(given) != set(fields):
        raise ModelCorrupt(f"its dims are not {', '.join(fields)}")
    return ModelDims(**given)
