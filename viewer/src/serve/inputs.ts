/** Inputs of a request: a text that is typed, or a file that is chosen, dropped or recorded. */

import { make } from "../dom.js";
import { record } from "./recorder.js";
import type { ServedRun } from "./server.js";

/** An input as the service reads it in JSON, and its file. */
export interface Given {
  value: unknown;
  file: File | null;
}

/** Types of the files of runs that read files. */
export const TYPES: Record<string, string> = {
  image: "image/*", sound: "audio/*,.wav,.flac", points: ".ply,.npz,.pcd,.csv", tracks: ".txt,.csv,.tsv",
};

export class TextInput {
  readonly root = make("textarea", { rows: "2", spellcheck: "false", autocapitalize: "off", "aria-label": "Text" });

  constructor(run: ServedRun, changed: (begin: number) => void) {
    this.root.placeholder = run.input === "vector" ? "Numbers" : "Text: type here";
    this.root.value = typeof run.example === "string" ? run.example : "";
    this.root.addEventListener("input", (event) => changed(event.timeStamp));
  }

  given(): Given | null {
    return this.root.value.trim() ? { value: this.root.value, file: null } : null;
  }
}

export class FileInput {
  readonly root = make("div", { class: "served-file" });
  private readonly name = make("p", { class: "pale" });
  private readonly recordButton = make("button", { type: "button", click: () => void this.record() }, "Record");
  private stop: (() => Promise<File>) | null = null;
  private current: Given | null = null;

  constructor(run: ServedRun, private readonly changed: (begin: number) => void, private readonly failed: (message: string) => void) {
    const choose = make("input", { type: "file", accept: TYPES[run.input]!, "aria-label": `A file: ${run.input}` });
    choose.addEventListener("change", () => choose.files?.[0] && void this.read(choose.files[0]));
    this.name.textContent = `Drop a file here (${run.input}), or choose one.`;
    // A microphone is offered to pages of this machine, and of https.
    this.recordButton.hidden = run.input !== "sound" || !navigator.mediaDevices;
    this.root.append(make("div", { class: "served-choice" }, choose, this.recordButton), this.name);
    this.root.addEventListener("dragover", (event) => event.preventDefault());
    this.root.addEventListener("drop", (event) => {
      event.preventDefault();
      const file = event.dataTransfer?.files[0];
      if (file) void this.read(file);
    });
  }

  given(): Given | null {
    return this.current;
  }

  private async read(file: File): Promise<void> {
    const begin = performance.now();
    const reader = new FileReader();
    reader.readAsDataURL(file);
    await new Promise((done) => (reader.onloadend = done));
    this.current = { value: reader.result, file };
    this.name.textContent = file.name;
    this.changed(begin);
  }

  /** Begin or end a recording. */
  private async record(): Promise<void> {
    try {
      if (this.stop) {
        const file = await this.stop();
        this.stop = null;
        await this.read(file);
      } else this.stop = await record();
    } catch (error) {
      this.failed(`The microphone cannot be used: ${(error as Error).message}`);
    }
    this.recordButton.textContent = this.stop ? "Stop" : "Record";
  }
}
