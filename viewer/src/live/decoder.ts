/** The model of a live page: an encoder, and a decoder with a key-value cache. */

import type { Form } from "./form.js";
import { addNorm, addPositions, apply, embed, feedForward, Memory, normalize } from "./layers.js";

export class Decoder {
  readonly encoder: Memory[] = [];
  readonly cross: Memory[] = [];
  readonly self: Memory[];
  /** Ids that the decoder has read. */
  readonly ids: number[] = [];

  constructor(private readonly form: Form) {
    this.self = form.core.decoder.map(({ attention }) => new Memory(attention));
  }

  /** Encode a source; yields after each layer. */
  *encode(ids: readonly number[]): Generator<void> {
    const { core, source } = this.form;
    const count = ids.length;
    let items = embed(source!, ids);
    addPositions(core.encoder_positions, items, count, 0);
    items = normalize(core.encoder_embedding_norm, items);
    for (const block of core.encoder) {
      const memory = new Memory(block.attention);
      this.encoder.push(memory);
      const { window } = block;
      items = addNorm(block.add_attention, items, (x) => (memory.extend(x, count), memory.read(x, count, { window })));
      items = addNorm(block.add_feedforward, items, (x) => feedForward(block.feedforward, x, count));
      yield;
    }
    items = normalize(core.encoder_norm, items);
    for (const { cross } of core.decoder) {
      const memory = new Memory(cross!);
      memory.extend(items, count);
      this.cross.push(memory);
    }
  }

  /** Read more ids; return the logits after each. */
  read(ids: readonly number[]): Float32Array[] {
    const { core, writer } = this.form;
    const count = ids.length;
    let items = embed(writer.inputs, ids);
    addPositions(core.decoder_positions, items, count, this.ids.length);
    items = normalize(core.decoder_embedding_norm, items);
    core.decoder.forEach((block, layer) => {
      const [memory, source] = [this.self[layer]!, this.cross[layer]];
      const { window } = block;
      items = addNorm(block.add_attention, items, (x) => (memory.extend(x, count), memory.read(x, count, { inOrder: true, window })));
      if (source) items = addNorm(block.add_cross!, items, (x) => source.read(x, count));
      items = addNorm(block.add_feedforward, items, (x) => feedForward(block.feedforward, x, count));
    });
    this.ids.push(...ids);
    const hidden = normalize(core.decoder_norm, items);
    const logits = apply({ weight: writer.output.weight, bias: writer.bias }, hidden, count);
    const vocab = logits.length / count;
    return ids.map((_, item) => logits.subarray(item * vocab, (item + 1) * vocab));
  }

  /** Forget all but the first ids. Only without a source. */
  cut(count: number): void {
    this.ids.length = count;
    for (const memory of this.self) memory.cut(count);
  }
}
