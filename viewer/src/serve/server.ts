/** Requests to the service of this page (regard/serve). */

/** JSON schema of an option of answers. */
export interface Schema {
  type?: string | string[];
  enum?: string[];
  anyOf?: Schema[];
  minimum?: number;
  maximum?: number;
  default?: unknown;
  description?: string;
}

/** A run that is served. */
export interface ServedRun {
  name: string;
  recipe: string;
  input: "text" | "image" | "sound" | "points" | "tracks" | "vector";
  options: Record<string, Schema>;
  engine: string;
  parameters: number;
  example: unknown;
}

export interface Reply {
  answers: Record<string, unknown>[];
  notes: string[];
  /** page: address of the attention; null if none was recorded, for the reason of the note. */
  look: { page: string | null; note: string };
}

/** A request that the service refuses, in one line; `wait`: seconds after which it may be sent again, 0 if it may not. */
export class Problem extends Error {
  constructor(readonly status: number, message: string, readonly wait = 0) {
    super(message);
  }
}

export class Server {
  /** Key of the service, which is kept in memory alone. */
  key = "";

  async runs(): Promise<ServedRun[]> {
    return ((await (await this.fetch("/v1/runs", {})).json()) as { runs: ServedRun[] }).runs;
  }

  async predict(request: object, signal: AbortSignal): Promise<Reply> {
    const body = JSON.stringify(request);
    return (await (await this.fetch("/v1/predict", { method: "POST", body, signal })).json()) as Reply;
  }

  /** Return the page of a look. */
  async look(address: string, signal: AbortSignal): Promise<Document> {
    const text = await (await this.fetch(address, { signal })).text();
    return new DOMParser().parseFromString(text, "text/html");
  }

  private async fetch(address: string, options: RequestInit): Promise<Response> {
    const headers = { "Content-Type": "application/json", ...(this.key && { Authorization: `Bearer ${this.key}` }) };
    const response = await fetch(address, { ...options, headers }).catch((error: unknown) => {
      throw options.signal?.aborted ? error : new Problem(0, "The service does not answer.");
    });
    if (!response.ok) throw new Problem(response.status, await describe(response), Number(response.headers.get("Retry-After")));
    return response;
  }
}

/** Return the line of an error (RFC 9457). */
async function describe(response: Response): Promise<string> {
  const text = await response.text();
  try {
    const { title, detail, at } = JSON.parse(text) as Record<string, string | undefined>;
    return `${title}: ${detail}${at ? ` (${at})` : ""}`;
  } catch {
    return `The service answers ${response.status} ${response.statusText}.`;
  }
}

/** Return the curl command of a request: with the fields of its options, and a text or file as its input. */
export function curlCommand(run: string, input: unknown, file: File | null, options: Record<string, unknown>, hasKey: boolean): string {
  const fields = { run, ...options, look: true };
  const query = new URLSearchParams(Object.entries(fields).map(([name, value]) => [name, String(value)]));
  const address = `${window.location.origin}/v1/predict${file ? `?${query}` : ""}`;
  const type = file ? file.type || "application/octet-stream" : "application/json";
  const key = hasKey ? `-H "Authorization: Bearer $KEY" ` : "";
  const body = file ? `--data-binary ${quote(`@${file.name}`)}` : `-d ${quote(JSON.stringify({ ...fields, inputs: [input] }))}`;
  return `curl ${quote(address)} ${key}-H ${quote(`Content-Type: ${type}`)} ${body}`;
}

/** Quote a word for a shell. */
function quote(word: string): string {
  return `'${word.replaceAll("'", `'\\''`)}'`;
}
