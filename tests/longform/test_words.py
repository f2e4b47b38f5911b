"""Word timestamps against openai-whisper's."""

import whisper.timing
from hypothesis import given, settings
from hypothesis import strategies as st

from choral.longform.words import WordTiming, merge_punctuation
from choral.options import TranscribeOptions

pieces = st.sampled_from([" a", "b", " word", ",", ".", "?", ' "', '"', " (", ")", " -", " ", "”", " “", "、", "。"])


@settings(max_examples=300, deadline=None)
@given(st.lists(pieces, max_size=10))
def test_merge_punctuation_equals_openai_whisper(texts):
    options = TranscribeOptions()
    oracle = [whisper.timing.WordTiming(text, [i], 0.0, 0.0, 1.0) for i, text in enumerate(texts)]
    whisper.timing.merge_punctuations(oracle, options.prepend_punctuations, options.append_punctuations)
    timings = [WordTiming(text, 1, 0.0, 0.0, 1.0) for text in texts]
    merge_punctuation(timings, options)
    assert [t.text for t in timings] == [t.word for t in oracle]
    assert [t.n_tokens for t in timings] == [len(t.tokens) for t in oracle]
