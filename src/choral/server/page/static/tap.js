// Runs on the browser's audio thread: what the microphone hears, as 16-bit samples at 16 kHz, a tenth of a second each.

const RATE = 16_000;
const PIECE = RATE / 10;

class Tap extends AudioWorkletProcessor {
  constructor() {
    super();
    this.piece = new Int16Array(PIECE);
    this.filled = 0;
    this.sum = 0;
    this.summed = 0;
    this.phase = 0;
  }

  // A sample is the mean of those that it stands for: three at 48 kHz.
  process([[channel]]) {
    for (const sample of channel ?? []) {
      this.sum += sample;
      this.summed += 1;
      this.phase += RATE;
      if (this.phase < sampleRate) continue;
      this.phase -= sampleRate;
      this.put(this.sum / this.summed);
      this.sum = this.summed = 0;
    }
    return true;
  }

  put(sample) {
    this.piece[this.filled++] = Math.round(32767 * Math.min(1, Math.max(-1, sample)));
    if (this.filled < PIECE) return;
    this.port.postMessage(this.piece);
    this.filled = 0;
  }
}

registerProcessor("tap", Tap);
