"""How do the turns of Choral compare with those of pyannote.audio's 3.1 pipeline, with the same weights?

FOLDER has audio and .rttm files. This runs where pyannote.audio 4 and onnx are installed beside Choral (an environment
of its own: it needs torchaudio). CHECKPOINT is segmentation 3.0 as PyTorch wrote it; the embedding network is that of
Choral's `speakers` model, loaded into pyannote.audio's own class. Turns are scored by pyannote.metrics.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch

from choral.audio.constants import SAMPLE_RATE
from choral.audio.recording import Recording
from choral.bench.report import json_line
from choral.bench.speaker_corpus import ReferenceTurns, read_speaker_corpus
from choral.cli.arguments import Parser
from choral.cli.bench import find_audio, progress
from choral.cli.console import format_table, write_stdout
from choral.diarization import Diarization, SpeakerTurn
from choral.model.store import ModelStore
from choral.speakers.diarize import diarize
from choral.speakers.networks import EMBEDDING_FILE, MODEL_NAME
from support.script import run_script

# The parameters that pyannote.audio publishes with speaker-diarization-3.1.
PARAMETERS = {
    "segmentation": {"min_duration_off": 0.0},
    "clustering": {"method": "centroid", "min_cluster_size": 12, "threshold": 0.7045654963945799},
}
COLLARS_S = (0.0, 0.25)  # on each side of an edge
HEADER = ("program", "collar s", "DER %", "missed", "false", "confused", "speakers right", "CPU s")


def embedding_model(path: Path) -> Any:
    """WeSpeaker's ResNet34 with the weights of an ONNX file, in which convolutions include the norms after them."""
    import onnx
    from onnx import numpy_helper
    from pyannote.audio.models.embedding import WeSpeakerResNet34

    graph = onnx.load(path).graph
    tensors = {each.name: torch.tensor(numpy_helper.to_array(each)) for each in graph.initializer}
    convolutions = [[tensors[name] for name in node.input[1:]] for node in graph.node if node.op_type == "Conv"]
    model = WeSpeakerResNet34().eval()
    network = model.resnet
    layers = [(network.conv1, network.bn1)]
    for block in (*network.layer1, *network.layer2, *network.layer3, *network.layer4):
        layers += [(block.conv1, block.bn1), (block.conv2, block.bn2)]
        if len(block.shortcut):
            layers.append((block.shortcut[0], block.shortcut[1]))
    with torch.no_grad():
        for (convolution, norm), (weight, bias) in zip(layers, convolutions, strict=True):
            convolution.weight.copy_(weight)
            norm.bias.copy_(bias)
            norm.weight.fill_((1 + norm.eps) ** 0.5)  # the identity, beside the bias
        network.seg_1.weight.copy_(tensors["model.seg_1.weight"])
        network.seg_1.bias.copy_(tensors["model.seg_1.bias"])
    _share_convolutions(network)
    return model


def _share_convolutions(network: Any) -> None:
    """The local speakers of a window differ only in the statistics: the convolutions need not run for each."""
    frames_of = network.forward_frames

    def forward(features: torch.Tensor, weights: torch.Tensor | None = None) -> Any:
        is_new = torch.tensor(
            [True, *(not torch.equal(a, b) for a, b in zip(features[1:], features[:-1], strict=True))]
        )
        frames = frames_of(features[is_new])[is_new.cumsum(0) - 1]
        return network.forward_embedding(frames, weights=weights)

    network.forward = forward


def load_pipeline(checkpoint: Path) -> Any:
    import pyannote.audio.pipelines.speaker_diarization as pipelines
    from pyannote.audio import Model

    pipelines.get_plda = lambda *args, **options: None  # of another clustering; it would be downloaded
    pipeline = pipelines.SpeakerDiarization(
        segmentation=Model.from_pretrained(checkpoint),
        embedding=embedding_model(ModelStore().resolve(MODEL_NAME) / EMBEDDING_FILE),
        embedding_exclude_overlap=True,
        clustering="AgglomerativeClustering",
        segmentation_batch_size=8,
        embedding_batch_size=6,
    )
    return pipeline.instantiate(PARAMETERS)


def peer_turns(pipeline: Any, path: Path) -> list[SpeakerTurn]:
    with Recording.open(path) as recording:
        samples = recording.samples(0, recording.n_samples).copy()
    found = pipeline({"waveform": torch.tensor(samples)[None], "sample_rate": SAMPLE_RATE}).speaker_diarization
    return [SpeakerTurn(span.start, span.end, name) for span, _, name in found.itertracks(yield_label=True)]


class PeerScores:
    """The scores of one program over all recordings."""

    def __init__(self, name: str) -> None:
        from pyannote.metrics.diarization import DiarizationErrorRate

        self.name, self.cpu_s, self.n_right = name, 0.0, 0
        # pyannote.metrics counts both sides of an edge together.
        self._rates = {collar_s: DiarizationErrorRate(collar=2 * collar_s) for collar_s in COLLARS_S}

    def add(self, reference: ReferenceTurns, turns: list[SpeakerTurn], duration_s: float, cpu_s: float) -> None:
        from pyannote.core import Annotation, Segment, Timeline

        def annotation(of: Any) -> Any:
            made = Annotation()
            for index, turn in enumerate(of):
                made[Segment(turn.start, turn.end), index] = turn.speaker
            return made

        scored = Timeline([Segment(*span) for span in reference.scored or ((0.0, duration_s),)])
        for rate in self._rates.values():
            rate(annotation(reference.turns), annotation(turns), uem=scored)
        self.n_right += len({turn.speaker for turn in turns}) == reference.n_speakers
        self.cpu_s += cpu_s

    def fields(self) -> list[dict[str, Any]]:
        rows = []
        for collar_s, rate in self._rates.items():
            parts = {
                name: 100 * rate[name] / rate["total"] for name in ("missed detection", "false alarm", "confusion")
            }
            figures = {"program": self.name, "collar_s": collar_s, "der_percent": 100 * abs(rate), **parts}
            rows.append(figures | {"n_right": self.n_right, "cpu_s": self.cpu_s})
        return rows


def add_arguments(parser: Parser) -> None:
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="audio with reference turns (.rttm)")
    parser.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help="pytorch_model.bin of segmentation 3.0")


def run(arguments: argparse.Namespace) -> int:
    torch.set_num_threads(1)
    corpus = read_speaker_corpus(arguments.folder, find_audio(arguments.folder, arguments.quiet))
    pipeline = load_pipeline(arguments.checkpoint)
    peer, mine = PeerScores("pyannote.audio 3.1"), PeerScores("Choral")
    for reference in corpus:
        started_s = time.process_time()
        found: Diarization = diarize(reference.path)
        middle_s = time.process_time()
        theirs = peer_turns(pipeline, reference.path)
        mine.add(reference, list(found.turns), found.duration, middle_s - started_s)
        peer.add(reference, theirs, found.duration, time.process_time() - middle_s)
        n_theirs = len({turn.speaker for turn in theirs})
        counts = f"{reference.n_speakers} speakers, {n_theirs} by pyannote.audio, {len(found.speakers)} by Choral"
        progress(arguments)(f"{reference.path.name}: {counts}")
    rows = [*peer.fields(), *mine.fields()]
    lines = [tuple(f"{each:.2f}" if isinstance(each, float) else str(each) for each in row.values()) for row in rows]
    write_stdout(format_table([HEADER, *lines], numbers=range(1, len(HEADER))) + "\n")
    write_stdout(json_line("pyannote", {"n_files": len(corpus), "rows": rows}) + "\n")
    return 0


if __name__ == "__main__":
    run_script(__doc__ or "", add_arguments, run, usage="FOLDER CHECKPOINT [options]", has_machine_flags=False)
