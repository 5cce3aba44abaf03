/** Recording of a sound from the microphone, as a WAV file. */

const RATE = 16_000;

/** Begin to record; the function that is returned ends it, and returns the file. */
export async function record(): Promise<() => Promise<File>> {
  const stream = await navigator.mediaDevices.getUserMedia({ audio: { channelCount: 1 } });
  const recorder = new MediaRecorder(stream);
  const parts: Blob[] = [];
  recorder.addEventListener("dataavailable", (event) => parts.push(event.data));
  recorder.start();
  return async () => {
    const ended = new Promise((done) => recorder.addEventListener("stop", done));
    recorder.stop();
    await ended;
    for (const track of stream.getTracks()) track.stop();
    const bytes = await new Blob(parts).arrayBuffer();
    const sound = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(bytes);
    return new File(wav(sound.getChannelData(0)), "recording.wav", { type: "audio/wav" });
  };
}

/** Return samples within [-1, 1] as the parts of a WAV file of 16 bits and one channel. */
function wav(samples: Float32Array): ArrayBufferView<ArrayBuffer>[] {
  const numbers = Int16Array.from(samples, (sample) => 32767 * Math.max(-1, Math.min(1, sample)));
  const [riff, wave, format, data] = [0x46464952, 0x45564157, 0x20746d66, 0x61746164]; // "RIFF", "WAVE", "fmt ", "data"
  const size = numbers.byteLength;
  const header = [riff, 36 + size, wave, format, 16, (1 << 16) | 1, RATE, 2 * RATE, (16 << 16) | 2, data, size];
  return [Uint32Array.from(header), numbers];
}
