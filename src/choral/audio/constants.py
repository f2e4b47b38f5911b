"""Whisper's audio constants; everything that can be derived is derived."""

SAMPLE_RATE = 16_000
N_FFT = 400
HOP_LENGTH = 160
WINDOW_S = 30
WINDOW_SAMPLES = WINDOW_S * SAMPLE_RATE  # 480,000 samples in a window
WINDOW_MEL_FRAMES = WINDOW_SAMPLES // HOP_LENGTH  # 3,000 mel frames in a window
MEL_FRAMES_PER_SECOND = SAMPLE_RATE // HOP_LENGTH  # 100
FRAMES_PER_SECOND = MEL_FRAMES_PER_SECOND // 2  # 50: the encoder halves the mel frames
WINDOW_FRAMES = WINDOW_S * FRAMES_PER_SECOND  # 1,500 frames in a window
S16_SCALE = 32_768.0
