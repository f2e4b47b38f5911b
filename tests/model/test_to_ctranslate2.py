"""Conversion to CTranslate2: the same weights, and the same results of the runtime itself."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import ctranslate2
import numpy as np
import pytest
import torch
import whisper

from choral.audio.recording import Recording
from choral.errors import StorageError
from choral.model import ct2_cache
from choral.model.alignment_heads import for_model
from choral.model.checkpoint import Checkpoint, expected_shapes
from choral.model.ct2_cache import ctranslate2_folder
from choral.model.dims import ModelDims
from choral.model.tokenizer import Tokenizer
from choral.model.weights import open_checkpoint
from choral.model.weights.to_ctranslate2 import convert
from small_models import write_hugging_face

SHAPES = {
    "large-v3's bins and vocabulary": ModelDims(128, 1500, 64, 2, 2, 51866, 448, 64, 2, 2),
    "distilled: two decoder layers": ModelDims(80, 1500, 128, 2, 4, 51865, 448, 128, 2, 2),
    "turbo's proportions": ModelDims(128, 1500, 64, 1, 8, 51866, 448, 64, 1, 1),
    "English only, three heads": ModelDims(80, 1500, 96, 3, 1, 51864, 448, 96, 3, 3),
    "a padded vocabulary": ModelDims(80, 1500, 64, 2, 1, 51968, 448, 64, 2, 1),
}
SETTINGS = ("alignment_heads", "lang_ids", "suppress_ids", "suppress_ids_begin")


@pytest.fixture(autouse=True)
def copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where copies go in these tests."""
    folder = tmp_path / "copies"
    monkeypatch.setenv("CHORAL_CONVERTED", str(folder))
    return folder


def random_checkpoint(dims: ModelDims, path: Path = Path("random")) -> Checkpoint:
    rng = np.random.default_rng(7)
    tensors = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in expected_shapes(dims).items()}
    return Checkpoint(dims=dims, tensors=tensors, alignment_heads=for_model(dims), vocabulary=None, path=path)


def converted_to(folder: Path, checkpoint: Checkpoint) -> Path:
    folder.mkdir()
    convert(checkpoint, folder)
    return folder


def load(folder: Path) -> ctranslate2.models.Whisper:
    return ctranslate2.models.Whisper(str(folder), device="cpu", compute_type="float32", intra_threads=1)


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    return Tokenizer.for_checkpoint(checkpoint.dims, checkpoint.vocabulary)


def oracle_of(checkpoint: Checkpoint) -> whisper.model.Whisper:
    oracle = whisper.model.Whisper(whisper.model.ModelDimensions(**dataclasses.asdict(checkpoint.dims)))
    tensors = checkpoint.tensors
    oracle.load_state_dict({name: torch.tensor(np.asarray(tensors[name], dtype=np.float32)) for name in tensors})
    return oracle.eval()


def mel_of(audio: Path, n_mels: int) -> torch.Tensor:
    with Recording.open(audio) as recording:
        samples = torch.tensor(recording.samples(0, recording.n_samples))
    mel: torch.Tensor = whisper.log_mel_spectrogram(whisper.pad_or_trim(samples), n_mels)
    return mel


def features_of(audio: Path, n_mels: int) -> ctranslate2.StorageView:
    return ctranslate2.StorageView.from_array(mel_of(audio, n_mels).numpy()[None])


@dataclasses.dataclass(frozen=True)
class Answers:
    tokens: list[int]
    scores: list[float]
    no_speech_prob: float
    path: list[tuple[int, int]]
    languages: list[tuple[str, float]]


def answers(folder: Path, audio: Path) -> Answers:
    """All that CTranslate2 says about some speech, by the folder's own settings."""
    model = load(folder)
    tokenizer = tokenizer_of(open_checkpoint(folder))
    heard = model.encode(features_of(audio, model.n_mels))
    start = list(tokenizer.sot_sequence("en", "transcribe"))
    [decoded] = model.generate(
        heard, [start], beam_size=1, return_scores=True, return_no_speech_prob=True, suppress_tokens=[-1]
    )
    tokens = decoded.sequences_ids[0]
    text = [token for token in tokens if token < tokenizer.eot]
    [aligned] = model.align(heard, start, [text], 1100)
    languages = model.detect_language(heard)[0] if model.is_multilingual else []
    return Answers(tokens, decoded.scores, decoded.no_speech_prob, aligned.alignments, languages)


def test_openai_pt_converts_to_the_published_folder(
    tiny_en_pt: Path, tiny_en_ct2: Path, jfk: Path, tmp_path: Path
) -> None:
    folder = converted_to(tmp_path / "converted", open_checkpoint(tiny_en_pt))
    assert (folder / "model.bin").read_bytes() == (tiny_en_ct2 / "model.bin").read_bytes()
    assert answers(folder, jfk) == answers(tiny_en_ct2, jfk)


def test_ctranslate2_folder_converts_to_itself(base_ct2: Path, jfk: Path, tmp_path: Path) -> None:
    folder = converted_to(tmp_path / "converted", open_checkpoint(base_ct2))
    assert (folder / "model.bin").read_bytes() == (base_ct2 / "model.bin").read_bytes()
    own, published = (json.loads((place / "config.json").read_text()) for place in (folder, base_ct2))
    assert {name: own[name] for name in SETTINGS} == {name: published[name] for name in SETTINGS}
    names = (base_ct2 / "vocabulary.txt").read_text().replace("<|nocaptions|>", "<|nospeech|>").split("\n")[:-1]
    assert json.loads((folder / "vocabulary.json").read_text()) == names
    assert answers(folder, jfk) == answers(base_ct2, jfk)


def test_converted_ggml_file_transcribes(tiny_ggml: Path, jfk: Path, tmp_path: Path) -> None:
    checkpoint = open_checkpoint(tiny_ggml)
    folder = converted_to(tmp_path / "converted", checkpoint)
    again = open_checkpoint(folder)
    assert again.alignment_heads == checkpoint.alignment_heads
    assert again.vocabulary is not None
    assert again.vocabulary[: len(checkpoint.vocabulary or ())] == checkpoint.vocabulary
    for name in checkpoint.tensors:
        assert np.array_equal(again.tensors[name], checkpoint.tensors[name]), name
    found = answers(folder, jfk)
    options = whisper.DecodingOptions(language="en", fp16=False)
    expected = whisper.decode(oracle_of(checkpoint), mel_of(jfk, checkpoint.dims.n_mels), options)
    assert found.tokens == expected.tokens
    assert "ask not what your country can do for you" in expected.text
    assert found.no_speech_prob == pytest.approx(expected.no_speech_prob, abs=1e-4)
    assert found.languages[0][0] == "<|en|>"


@pytest.mark.parametrize("dims", SHAPES.values(), ids=SHAPES.keys())
def test_models_of_other_shapes(dims: ModelDims, jfk: Path, tmp_path: Path) -> None:
    """The runtime against openai-whisper with the same random weights."""
    checkpoint = random_checkpoint(dims)
    folder = converted_to(tmp_path / "converted", checkpoint)
    model, tokenizer = load(folder), tokenizer_of(checkpoint)
    assert (model.n_mels, model.is_multilingual) == (dims.n_mels, dims.is_multilingual)
    oracle = oracle_of(checkpoint)
    mel = mel_of(jfk, dims.n_mels)
    heard = model.encode(ctranslate2.StorageView.from_array(mel.numpy()[None]))
    with torch.inference_mode():
        expected = oracle.embed_audio(mel[None])
        assert np.asarray(heard) == pytest.approx(expected.numpy(), abs=2e-3)
        logits = oracle.logits(torch.tensor([[tokenizer.sot]]), expected)[0, 0].double().numpy()
    [decoded] = model.generate(
        heard, [[tokenizer.sot]], beam_size=1, max_length=2, return_logits_vocab=True, suppress_tokens=[-1]
    )
    found = np.asarray(decoded.logits[0][0])
    suppressed = json.loads((folder / "config.json").read_text())["suppress_ids"]
    assert set(range(tokenizer.timestamp_begin + 1501, dims.n_vocab)) <= set(suppressed)
    allowed = slice(tokenizer.timestamp_begin, tokenizer.timestamp_begin + 51)  # what a text may start with
    assert found[allowed] == pytest.approx(logits[allowed], abs=2e-3)
    [aligned] = model.align(heard, list(tokenizer.sot_sequence("en", "transcribe")), [[100, 200, 300]], 1100)
    assert len(aligned.text_token_probs) == 3
    assert aligned.alignments[-1] == (3, 549)
    if dims.is_multilingual:
        assert len(model.detect_language(heard)[0]) == len(tokenizer.languages)


def test_float16_stays_float16(tmp_path: Path) -> None:
    dims = SHAPES["English only, three heads"]
    whole = random_checkpoint(dims)
    half = dataclasses.replace(whole, tensors={name: t.astype(np.float16) for name, t in whole.tensors.items()})
    again = open_checkpoint(converted_to(tmp_path / "converted", half))
    for name in half.tensors:
        assert again.tensors[name].dtype == np.float16
        assert np.array_equal(again.tensors[name], half.tensors[name])


def test_ctranslate2_folders_are_used_in_place(tiny_en_ct2: Path, base_ct2: Path, copies: Path) -> None:
    for folder in (tiny_en_ct2, base_ct2):
        assert ctranslate2_folder(open_checkpoint(folder)) == folder
        assert ctranslate2_folder(open_checkpoint(folder / "model.bin")) == folder
    assert not copies.exists()


@pytest.fixture
def small_folder(tmp_path: Path) -> Path:
    """A model of its own shape, in a CTranslate2 folder."""
    return converted_to(tmp_path / "small", random_checkpoint(SHAPES["distilled: two decoder layers"]))


def with_config(folder: Path, **changes: object) -> Checkpoint:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return open_checkpoint(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"alignment_heads": [[7, 0], [10, 17]]},  # the teacher's, as distilled models are published
        {"alignment_heads": None},
        {"lang_ids": []},
        {"suppress_ids_begin": [220]},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_folders_with_incomplete_settings_are_converted(
    small_folder: Path, copies: Path, changes: dict[str, object]
) -> None:
    assert ctranslate2_folder(open_checkpoint(small_folder)) == small_folder
    checkpoint = with_config(small_folder, **changes)
    folder = ctranslate2_folder(checkpoint)
    assert folder.parent == copies
    config = json.loads((folder / "config.json").read_text())
    assert config["alignment_heads"] == [list(pair) for pair in for_model(checkpoint.dims)]
    assert config["suppress_ids_begin"] == [220, 50257]
    assert len(config["lang_ids"]) == 99
    assert (folder / "model.bin").read_bytes() == (small_folder / "model.bin").read_bytes()


def test_folders_without_vocabulary_are_converted(small_folder: Path, copies: Path) -> None:
    (small_folder / "vocabulary.json").unlink()
    folder = ctranslate2_folder(open_checkpoint(small_folder))
    assert folder.parent == copies
    assert load(folder).num_languages == 99


def test_hugging_face_folders_are_converted(tmp_path: Path, copies: Path) -> None:
    checkpoint = random_checkpoint(SHAPES["English only, three heads"])
    write_hugging_face(tmp_path / "hugging", dict(checkpoint.tensors), checkpoint.dims, n_shards=2)
    folder = ctranslate2_folder(open_checkpoint(tmp_path / "hugging"))
    again = open_checkpoint(folder)
    for name, tensor in checkpoint.tensors.items():
        assert np.array_equal(again.tensors[name], tensor), name
    assert ctranslate2_folder(open_checkpoint(folder)) == folder


def copies_in(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_copy_is_reused_until_the_model_changes(tiny_en_pt: Path, copies: Path, tmp_path: Path) -> None:
    source = tmp_path / "mine.pt"
    shutil.copyfile(tiny_en_pt, source)
    first = ctranslate2_folder(open_checkpoint(source))
    written_ns = (first / "model.bin").stat().st_mtime_ns
    assert ctranslate2_folder(open_checkpoint(source)) == first
    assert (first / "model.bin").stat().st_mtime_ns == written_ns

    before = source.stat()
    changed = bytearray(source.read_bytes())
    position = changed.index(np.asarray(open_checkpoint(source).tensors["decoder.ln.bias"]).tobytes())
    changed[position] ^= 1
    source.write_bytes(changed)
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))  # as an archive that gives all files one date
    assert (source.stat().st_size, source.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    second = ctranslate2_folder(open_checkpoint(source))
    assert second != first
    assert np.array_equal(
        open_checkpoint(second).tensors["decoder.ln.bias"], open_checkpoint(source).tensors["decoder.ln.bias"]
    )
    assert copies_in(copies) == [second.name]


def test_copies_of_deleted_models_are_removed(tiny_en_pt: Path, copies: Path, tmp_path: Path) -> None:
    for name in ("one.pt", "two.pt", "three.pt"):
        shutil.copyfile(tiny_en_pt, tmp_path / name)
    one = ctranslate2_folder(open_checkpoint(tmp_path / "one.pt"))
    two = ctranslate2_folder(open_checkpoint(tmp_path / "two.pt"))
    (tmp_path / "one.pt").unlink()
    three = ctranslate2_folder(open_checkpoint(tmp_path / "three.pt"))
    assert not one.exists()
    assert copies_in(copies) == sorted([two.name, three.name])


def test_damaged_copy_is_replaced(tiny_en_pt: Path, tiny_en_ct2: Path) -> None:
    folder = ctranslate2_folder(open_checkpoint(tiny_en_pt))
    for name in ("model.bin", "config.json", "vocabulary.json"):
        whole = (folder / name).read_bytes()
        (folder / name).write_bytes(whole[: len(whole) // 2])
        assert ctranslate2_folder(open_checkpoint(tiny_en_pt)) == folder
        assert (folder / name).read_bytes() == whole
    assert (folder / "model.bin").read_bytes() == (tiny_en_ct2 / "model.bin").read_bytes()


ASK = """
import sys
from pathlib import Path
from choral.model.ct2_cache import ctranslate2_folder
from choral.model.weights import open_checkpoint
checkpoint = open_checkpoint(Path(sys.argv[1]))
"""


def start_process(code: str, source: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", ASK + code, str(source)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_concurrent_processes_share_one_copy(tiny_en_pt: Path, tiny_en_ct2: Path, copies: Path) -> None:
    code = (
        "print('ready', flush=True); sys.stdin.readline()\n"
        "folder = ctranslate2_folder(checkpoint)\n"
        "print(folder, (folder / 'model.bin').stat().st_ino, (folder / 'model.bin').stat().st_mtime_ns)\n"
    )
    processes = [start_process(code, tiny_en_pt) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    told = [process.communicate("go\n", timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0], told
    assert len({output for output, _ in told}) == 1
    [name] = copies_in(copies)
    assert (copies / name / "model.bin").read_bytes() == (tiny_en_ct2 / "model.bin").read_bytes()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_killed_conversion_is_repeated(tiny_en_pt: Path, tiny_en_ct2: Path, copies: Path) -> None:
    code = (
        "import os, signal\n"
        "from choral.model.weights import to_ctranslate2\n"
        "def stop(*_):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "to_ctranslate2._config = stop\n"  # after model.bin, before the rest
        "ctranslate2_folder(checkpoint)\n"
    )
    process = start_process(code, tiny_en_pt)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert any(name.endswith(".partial") for name in copies_in(copies))
    folder = ctranslate2_folder(open_checkpoint(tiny_en_pt))
    assert copies_in(copies) == [folder.name]
    assert (folder / "model.bin").read_bytes() == (tiny_en_ct2 / "model.bin").read_bytes()


def test_interrupted_conversion_leaves_nothing(tiny_en_pt: Path, copies: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(checkpoint: Checkpoint, folder: Path) -> None:
        convert(checkpoint, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(ct2_cache, "convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        ctranslate2_folder(open_checkpoint(tiny_en_pt))
    assert copies_in(copies) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
def test_full_disk_leaves_nothing(tiny_en_pt: Path, copies: Path) -> None:
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000_000, 10_000_000))\n"
        "from choral.errors import StorageError\n"
        "try:\n"
        "    ctranslate2_folder(checkpoint)\n"
        "except StorageError as error:\n"
        "    print(error)\n"
    )
    output, errors = start_process(code, tiny_en_pt).communicate(timeout=120)
    assert output.startswith("the disk is full: "), errors
    assert copies_in(copies) == []


def test_unwritable_cache_folder_is_named(tiny_en_pt: Path, copies: Path) -> None:
    copies.write_text("a file where a folder should be")
    with pytest.raises(StorageError, match="copies"):
        ctranslate2_folder(open_checkpoint(tiny_en_pt))


def test_conversion_needs_neither_torch_nor_ctranslate2(tiny_en_pt: Path) -> None:
    code = (
        "ctranslate2_folder(checkpoint)\n"
        "print([name for name in ('torch', 'transformers', 'ctranslate2') if name in sys.modules])\n"
    )
    output, errors = start_process(code, tiny_en_pt).communicate(timeout=120)
    assert output == "[]\n", errors
