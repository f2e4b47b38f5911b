"""The CTranslate2 runner: micro-batches, because CTranslate2 owns the decoding loop and decodes windows to their end.

Windows of different requests share a call if they have the same options and prompts of the same shape. A sampled window
runs alone, on a fresh copy of the model, because its random numbers can be seeded only once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import ctranslate2
import numpy as np
import numpy.typing as npt

from choral.audio.constants import FRAMES_PER_SECOND, WINDOW_FRAMES
from choral.common.malloc import keep_large_blocks
from choral.common.processor import default_threads
from choral.config import EngineSettings
from choral.engine.capacity import free_memory, plan_capacity
from choral.engine.ct2_device import pick_compute_type, pick_device
from choral.engine.ct2_hotwords import GreedyText, boosted_text
from choral.engine.decoding import finished, initial_tokens, nan_failure, require_tokens, window_seed
from choral.engine.engine_plan import CTRANSLATE2_CPU_SLOTS
from choral.engine.hotword_match import HotwordMatch
from choral.engine.runner import PrefillInput
from choral.engine.search import Candidate
from choral.engine.steps import Failed, Finished, InProgress, Outcome
from choral.engine.window import (
    AlignParams,
    Decoded,
    DecodeParams,
    DetectLanguageParams,
    Languages,
    Params,
    TokenTimes,
    WindowAudio,
)
from choral.errors import UsageError
from choral.model.checkpoint import Checkpoint
from choral.model.ct2_cache import ctranslate2_folder
from choral.model.tokenizer import Tokenizer

MAX_SLOTS = {"cpu": CTRANSLATE2_CPU_SLOTS, "cuda": 32}
FLOAT32_BYTES = 4
OLD_LANGUAGE_CODES = {"iw": "he"}  # in older model folders
# Ranks beams by the sum of their log-probabilities. With a penalty of 0 it would stop at the first beam that ends.
TINY_PENALTY = 1e-30

Features = npt.NDArray[np.float32]  # of one window, on the host; stacked for every call


@dataclass(frozen=True)
class CallOptions:
    """What windows must have in common to share a call: options, and the shape of their prompts."""

    n_previous: int  # tokens before the start of transcript
    n_start: int
    n_prefix: int
    n_beams: int
    patience: float
    temperature: float
    max_tokens: int  # prefix included
    suppress_tokens: tuple[int, ...]
    suppress_blank: bool
    max_first_timestamp: int
    has_logprobs: bool

    @property
    def max_length(self) -> int:
        """CTranslate2 generates at most half this number, and at most what the prompt leaves of it."""
        return max(2 * self.max_tokens, self.max_tokens + self.n_previous + self.n_start - 1)


@dataclass(frozen=True)
class Prefilled:
    """A window that waits for the call that decodes it."""

    start: PrefillInput
    prompt: list[int]
    call: CallOptions

    @property
    def is_boosted(self) -> bool:
        """Beams and samples are not."""
        return self.start.params.hotwords is not None and self.call.temperature == 0 and self.call.n_beams == 1


class Ct2Runner:
    name = "ctranslate2"
    costs = None  # every call waits for its results

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer, settings: EngineSettings) -> None:
        self._tokenizer, self._dims = tokenizer, checkpoint.dims
        kind, index = pick_device(settings.device)
        self.device = kind if kind == "cpu" else f"{kind}:{index}"
        self.compute_type = pick_compute_type(settings.compute_type, kind)
        if kind == "cpu":
            keep_large_blocks()
        self._load: Callable[[], Any] = partial(
            ctranslate2.models.Whisper,
            str(ctranslate2_folder(checkpoint)),
            device=kind,
            device_index=index,
            compute_type=self.compute_type,
            intra_threads=settings.threads or default_threads(),
        )
        self._model = self._load()
        capacity = plan_capacity(
            int(free_memory() * settings.memory_share),
            checkpoint.dims,
            FLOAT32_BYTES,
            n_slots=settings.slots,
            max_slots=MAX_SLOTS[kind],
        )
        self.capacity = replace(capacity, is_micro_batch=True)
        self._prefilled: dict[int, Prefilled] = {}  # by their first slot

    def encode(self, audios: Sequence[WindowAudio]) -> Sequence[Features]:
        mels = np.stack([audio.log_mel(self._dims.n_mels) for audio in audios])
        encoded = np.asarray(self._model.encode(ctranslate2.StorageView.from_array(mels), to_cpu=True))
        return [np.array(each) for each in encoded]  # separate, so that the cache can drop each alone

    def prefill(self, starts: Sequence[PrefillInput]) -> Sequence[Outcome]:
        """Nothing runs yet: only the prompts are built."""
        self._prefilled |= {start.slots[0]: self._prepare(start) for start in starts}
        return [InProgress()] * len(starts)

    def decode(self, windows: Sequence[tuple[int, ...]]) -> Sequence[Outcome]:
        """Decode all of them to their end, in as few calls as their options allow."""
        groups: dict[object, list[Prefilled]] = {}
        for slots in windows:
            window = self._prefilled[slots[0]]
            is_alone = window.call.temperature > 0 or window.is_boosted
            groups.setdefault(slots if is_alone else window.call, []).append(window)
        outcomes: dict[int, Outcome] = {}
        for group in groups.values():
            results = self._results(group)
            outcomes |= {window.start.slots[0]: outcome for window, outcome in zip(group, results, strict=True)}
        return [outcomes[slots[0]] for slots in windows]

    def _results(self, group: Sequence[Prefilled]) -> list[Outcome]:
        if group[0].call.temperature > 0:
            return self._sample(group[0])
        return self._boosted(group[0]) if group[0].is_boosted else self._search(group)

    def release(self, slots: tuple[int, ...]) -> None:
        if slots:
            self._prefilled.pop(slots[0], None)

    def align(self, inputs: Sequence[tuple[Any, Params[Any]]]) -> Sequence[Outcome]:
        """One by one: in a batch, word times are wrong where texts differ in length, and nothing is gained."""
        return [finished(self._run(storage([features]), params), self.compute_type) for features, params in inputs]

    def _run(self, features: ctranslate2.StorageView, params: Params[Any]) -> TokenTimes | Languages:
        match params:
            case AlignParams():
                return self._align(features, params)
            case DetectLanguageParams():
                return self._detect_language(features)
            case other:
                raise TypeError(f"unknown window parameters: {other!r}")

    def _align(self, features: ctranslate2.StorageView, params: AlignParams) -> TokenTimes:
        require_tokens(params.text_tokens, self._tokenizer)
        start = list(self._tokenizer.sot_sequence(params.language, params.task))
        alignment = self._model.align(features, start, [list(params.text_tokens)], 2 * params.n_frames)[0]
        rows, columns = np.array(alignment.alignments, dtype=np.intp).reshape(-1, 2).T
        is_new_token = np.diff(rows, prepend=-1) > 0
        return TokenTimes(columns[is_new_token], np.array(alignment.text_token_probs, dtype=np.float32))

    def _detect_language(self, features: ctranslate2.StorageView) -> Languages:
        if not self._tokenizer.is_multilingual:
            raise UsageError("this model is English-only and cannot detect languages")
        by_name = {token[2:-2]: probability for token, probability in self._model.detect_language(features)[0]}
        by_code = {OLD_LANGUAGE_CODES.get(name, name): probability for name, probability in by_name.items()}
        return Languages({code: by_code[code] for code in self._tokenizer.languages})

    def _search(self, group: Sequence[Prefilled]) -> list[Outcome]:
        """Greedy or beam search."""
        call, n_beams = group[0].call, group[0].call.n_beams
        n_hypotheses = max(1, round(n_beams * call.patience)) if n_beams > 1 else 1
        results = self._generate(
            self._model,
            group,
            beam_size=n_beams,
            patience=call.patience,
            num_hypotheses=n_hypotheses,
            length_penalty=TINY_PENALTY if n_beams > 1 else 0,
        )
        return [self._outcome(window, [result]) for window, result in zip(group, results, strict=True)]

    def _boosted(self, window: Prefilled) -> list[Outcome]:
        """Greedy search with hotwords."""
        call, params = window.call, window.start.params
        assert params.hotwords is not None
        no_speech_probs: list[float] = []

        def generate(tokens: tuple[int, ...]) -> GreedyText:
            begun = replace(window, prompt=[*window.prompt, *tokens], call=replace(call, has_logprobs=True))
            (result,) = self._generate(self._model, [begun], beam_size=1, length_penalty=0)
            no_speech_probs.append(result.no_speech_prob)
            logits = [np.asarray(step, dtype=np.float32).reshape(-1) for step in result.logits[0][call.n_prefix :]]
            return GreedyText(tuple(result.sequences_ids[0][call.n_prefix :]), logits)

        match = HotwordMatch(params.hotwords, params.hotword_boost, self._tokenizer.starts_word)
        text = boosted_text(generate, match, self._tokenizer.eot)
        if math.isnan(no_speech_probs[0]) or math.isnan(text.sum_logprob):
            return [Failed(nan_failure(self.compute_type))]
        best = Candidate(text.tokens, text.sum_logprob)
        logprobs = text.token_logprobs if call.has_logprobs else None
        return [Finished(Decoded(best.tokens, best.avg_logprob, no_speech_probs[0], logprobs))]

    def _sample(self, window: Prefilled) -> list[Outcome]:
        params = window.start.params
        ctranslate2.set_random_seed(window_seed(params, window.start.audio_key) & 0xFFFF_FFFF)
        samples = self._generate(
            self._load(),
            [window] * params.n_candidates,
            beam_size=1,
            sampling_topk=0,
            sampling_temperature=params.temperature,
            length_penalty=0,
        )
        return [self._outcome(window, samples)]

    def _generate(self, model: Any, group: Sequence[Prefilled], **search: Any) -> list[Any]:
        call = group[0].call
        results: list[Any] = model.generate(
            storage([window.start.features for window in group]),
            [window.prompt for window in group],
            max_length=call.max_length,
            suppress_tokens=list(call.suppress_tokens),
            suppress_blank=call.suppress_blank,
            max_initial_timestamp_index=call.max_first_timestamp,
            return_scores=True,
            return_no_speech_prob=True,
            return_logits_vocab=call.has_logprobs,
            **search,
        )
        return results

    def _outcome(self, window: Prefilled, results: Sequence[Any]) -> Outcome:
        """The best hypothesis, by the window's length penalty."""
        call = window.call
        candidates = [
            Candidate(
                tuple(tokens[call.n_prefix :]), score, token_logprobs(result, call) if call.has_logprobs else None
            )
            for result in results
            for tokens, score in zip(result.sequences_ids, result.scores, strict=True)
        ]
        no_speech_prob: float = results[0].no_speech_prob
        if math.isnan(no_speech_prob) or any(math.isnan(candidate.sum_logprob) for candidate in candidates):
            return Failed(nan_failure(self.compute_type))
        best = max(candidates, key=lambda candidate: candidate.score(window.start.params.length_penalty))
        return Finished(Decoded(best.tokens, best.avg_logprob, no_speech_prob, best.token_logprobs))

    def _prepare(self, start: PrefillInput) -> Prefilled:
        prompt = initial_tokens(start.params, self._tokenizer, self._dims.n_text_ctx)
        return Prefilled(start, prompt, self._call(start.params, prompt))

    def _call(self, params: DecodeParams, prompt: list[int]) -> CallOptions:
        tokenizer, n_text_ctx = self._tokenizer, self._dims.n_text_ctx
        n_previous = prompt.index(tokenizer.sot)
        n_start = len(tokenizer.sot_sequence(params.language, params.task)) + (not params.timestamps)
        n_prefix = len(prompt) - n_previous - n_start
        max_length = n_text_ctx - (n_previous + n_start - 1)
        seconds = params.max_initial_timestamp
        n_beams = params.n_candidates if params.temperature == 0 else 1
        if params.token_logprobs and n_beams > 1:
            raise UsageError("CTranslate2 returns no log-probabilities for beams: use beam_size 1, or --engine torch")
        return CallOptions(
            n_previous=n_previous,
            n_start=n_start,
            n_prefix=n_prefix,
            n_beams=n_beams,
            patience=params.patience,
            temperature=params.temperature,
            max_tokens=min(n_prefix + (params.max_tokens or n_text_ctx // 2), max_length),
            suppress_tokens=params.suppress_tokens,
            suppress_blank=params.suppress_blank,
            max_first_timestamp=WINDOW_FRAMES if seconds is None else round(seconds * FRAMES_PER_SECOND),
            has_logprobs=params.token_logprobs,
        )


def token_logprobs(result: Any, call: CallOptions) -> tuple[float, ...]:
    """Those of the only hypothesis, without the prefix, from the logits after the rules were applied."""
    (tokens,), (steps,) = result.sequences_ids, result.logits
    logits = [np.asarray(step, dtype=np.float64).reshape(-1) for step in steps[: len(tokens)]]
    logprobs = [step[token] - np.logaddexp.reduce(step) for step, token in zip(logits, tokens, strict=True)]
    return tuple(map(float, logprobs[call.n_prefix :]))


def storage(features: Sequence[Features]) -> ctranslate2.StorageView:
    return ctranslate2.StorageView.from_array(np.stack(features))
