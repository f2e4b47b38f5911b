"""The usual way without a server: transformers, static batches of 64, features given. For the ratio that must hold on
any machine."""

from __future__ import annotations

import time

import torch

from choral.bench.random_model import dims_of

BATCH, N_TOKENS = 64, 100


@torch.inference_mode()
def windows_per_s(shape: str, device: torch.device) -> float:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    dims = dims_of(shape)
    config = WhisperConfig(
        vocab_size=dims.n_vocab,
        num_mel_bins=dims.n_mels,
        d_model=dims.n_text_state,
        encoder_layers=dims.n_audio_layer,
        encoder_attention_heads=dims.n_audio_head,
        encoder_ffn_dim=4 * dims.n_audio_state,
        decoder_layers=dims.n_text_layer,
        decoder_attention_heads=dims.n_text_head,
        decoder_ffn_dim=4 * dims.n_text_state,
    )
    with torch.device(device):
        model: torch.nn.Module = WhisperForConditionalGeneration(config)
    model.to(torch.bfloat16).eval()
    features = torch.randn(BATCH, dims.n_mels, 3000, device=device, dtype=torch.bfloat16)
    prompt = torch.full((BATCH, 4), 50_258, device=device)

    def run(n_tokens: int) -> None:
        model.generate(  # type: ignore[operator]
            input_features=features,
            decoder_input_ids=prompt,
            min_new_tokens=n_tokens,
            max_new_tokens=n_tokens,
            do_sample=False,
        )
        torch.cuda.synchronize(device)

    run(3)
    started_s = time.perf_counter()
    run(N_TOKENS)
    return BATCH / (time.perf_counter() - started_s)
