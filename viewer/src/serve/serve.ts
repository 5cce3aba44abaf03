/** The page of a service: choose a run, give it an input, and see its answer and attention. */

import { make } from "../dom.js";
import { DataError, pageOf } from "../load.js";
import type { Page } from "../page.js";
import type { Panes } from "../view.js";
import { answerElements } from "./answer.js";
import { FileInput, TextInput, TYPES } from "./inputs.js";
import { Options } from "./options.js";
import { curlCommand, Problem, type Reply, type ServedRun, Server } from "./server.js";

/** Add the form to the page; `open` shows the first attention. Returns an interface for tests. */
export async function startServed(root: HTMLElement, open: (page: Page) => Panes): Promise<object> {
  const served = new Served(root, open);
  await served.load();
  return served;
}

class Served {
  private readonly server = new Server();
  private readonly options = new Options();
  private readonly choice = make("select", { "aria-label": "Run" });
  private readonly about = make("span", { class: "pale" });
  private readonly host = make("div", { class: "served-input" });
  private readonly output = make("output", { class: "live-output served-output", "aria-live": "polite" });
  private readonly status = make("p", { class: "live-status pale" });
  private readonly link = make("a", { target: "_blank", rel: "noopener" }, "Page of this attention");
  private readonly command = make("code", { class: "served-command" });
  private readonly key = make("input", { type: "password", placeholder: "API key", "aria-label": "API key", autocomplete: "off" });
  private runs: ServedRun[] = [];
  private input: TextInput | FileInput | null = null;
  private request = new AbortController();
  private panes: Panes | null = null;

  constructor(private readonly root: HTMLElement, private readonly open: (page: Page) => Panes) {
    const update = (event: Event) => void this.update(event.timeStamp);
    this.choice.addEventListener("change", () => this.choose());
    this.options.root.addEventListener("input", update);
    this.key.addEventListener("change", () => ((this.server.key = this.key.value), void this.load()));
    this.key.hidden = this.link.hidden = this.command.hidden = true;
    const tools = make("div", { class: "served-tools" },
      make("label", { class: "picker" }, make("span", {}, "Run"), this.choice), this.about, this.options.root,
      make("button", { type: "button", click: () => void this.copy() }, "Copy curl"), this.link, this.key);
    root.classList.add("is-live", "is-served", "is-stale", "has-no-look");
    root.prepend(make("form", { class: "live", submit: (event: Event) => event.preventDefault() },
      tools, this.host, this.output, this.status, this.command));
  }

  /** Load the list of runs, and show the first. */
  async load(): Promise<void> {
    try {
      this.runs = await this.server.runs();
    } catch (error) {
      return this.fail(error);
    }
    this.key.hidden = true;
    const asked = new URLSearchParams(window.location.search).get("run");
    this.choice.replaceChildren(...this.runs.map(({ name }) => make("option", { value: name, selected: name === asked }, name)));
    await this.choose();
  }

  private get run(): ServedRun | undefined {
    return this.runs.find(({ name }) => name === this.choice.value);
  }

  /** Show the form of the chosen run. */
  private async choose(): Promise<void> {
    const { run } = this;
    if (!run) return;
    this.about.textContent = `${run.recipe}, ${run.parameters.toLocaleString("en")} parameters, ${run.engine}`;
    this.options.show(run.options);
    const changed = (begin: number) => void this.update(begin);
    this.input = run.input in TYPES ? new FileInput(run, changed, (message) => (this.status.textContent = message)) : new TextInput(run, changed);
    this.host.replaceChildren(this.input.root);
    this.root.classList.add("has-no-look");
    await this.update(performance.now());
  }

  /** Ask for the answer to the input, and show it; then its attention. `begin`: time of the input. */
  private async update(begin: number): Promise<void> {
    this.request.abort();
    const { signal } = (this.request = new AbortController());
    const [run, given] = [this.run, this.input?.given()];
    this.command.hidden = true;
    if (!run || !given) return this.clear();
    try {
      const reply = await this.server.predict({ run: run.name, inputs: [given.value], look: true, ...this.options.values }, signal);
      this.output.replaceChildren(...answerElements(reply.answers[0]!));
      const notes = [`${(performance.now() - begin).toFixed(0)} ms`, ...reply.notes, reply.look.note];
      this.status.textContent = notes.filter((part) => part).join("; ");
      await this.look(reply, signal);
      if (!signal.aborted) performance.measure("first row", { start: begin });
    } catch (error) {
      if (signal.aborted) return;
      this.fail(error);
      if (error instanceof Problem && error.wait) setTimeout(() => signal.aborted || void this.update(begin), 1000 * error.wait);
    }
  }

  private async look({ look }: Reply, signal: AbortSignal): Promise<void> {
    this.link.hidden = !look.page;
    this.root.classList.toggle("has-no-look", !look.page);
    if (look.page) {
      this.link.href = look.page;
      const page = await pageOf(await this.server.look(look.page, signal));
      this.panes ??= this.open(page);
      await this.panes.replace(page);
    }
    this.root.classList.remove("is-stale");
  }

  /** Copy the curl command of what is asked, and show it. */
  private async copy(): Promise<void> {
    const [run, given] = [this.run, this.input?.given()];
    if (!run || !given) return;
    this.command.textContent = curlCommand(run.name, given.value, given.file, this.options.values, this.server.key !== "");
    this.command.hidden = false;
    await navigator.clipboard?.writeText(this.command.textContent).catch(() => undefined);
  }

  private fail(error: unknown): void {
    if (!(error instanceof Problem) && !(error instanceof DataError)) throw error;
    this.clear();
    this.status.textContent = error.message;
    if (error instanceof Problem && error.status === 401) this.key.hidden = false;
  }

  /** What was shown is not that of this input. */
  private clear(): void {
    this.output.replaceChildren();
    this.status.textContent = "";
    this.link.hidden = true;
    this.root.classList.add("is-stale");
  }
}
