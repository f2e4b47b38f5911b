// Runs on the browser's audio thread: posts microphone audio as 16-bit PCM at 16 kHz, in chunks of 0.1 s.

const RATE = 16_000;
const CHUNK_SAMPLES = RATE / 10;

class PcmEncoder extends AudioWorkletProcessor {
  constructor() {
    super();
    this.chunk = new Int16Array(CHUNK_SAMPLES);
    this.nWritten = 0;
    this.sum = 0;
    this.nSummed = 0;
    this.phase = 0;
  }

  // Downsamples by averaging: an output sample is the mean of the input samples it covers, three at 48 kHz.
  process([[channel]]) {
    for (const sample of channel ?? []) {
      this.sum += sample;
      this.nSummed += 1;
      this.phase += RATE;
      if (this.phase < sampleRate) continue;
      this.phase -= sampleRate;
      this.write(this.sum / this.nSummed);
      this.sum = this.nSummed = 0;
    }
    return true;
  }

  write(sample) {
    this.chunk[this.nWritten++] = Math.round(32767 * Math.min(1, Math.max(-1, sample)));
    if (this.nWritten < CHUNK_SAMPLES) return;
    this.port.postMessage(this.chunk);
    this.nWritten = 0;
  }
}

registerProcessor("pcm-encoder", PcmEncoder);
