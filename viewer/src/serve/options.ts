/** Fields of the options of answers; an empty field leaves the setting of the run. */

import { make } from "../dom.js";
import type { Schema } from "./server.js";

type Field = HTMLInputElement | HTMLSelectElement;

const PARSERS: Record<string, (text: string) => unknown> = {
  integer: Number, number: Number, string: String, boolean: (text) => text === "true",
};

export class Options {
  readonly root = make("details", { class: "served-options" });
  private readonly fields = new Map<string, { field: Field; type: string }>();

  /** Show the fields of options by name; lists have none. */
  show(options: Record<string, Schema>): void {
    this.fields.clear();
    this.root.replaceChildren(make("summary", {}, "Options"));
    for (const [name, option] of Object.entries(options)) {
      const schema = option.anyOf?.find(({ type }) => type !== "null") ?? option;
      const type = [schema.type].flat()[0]!;
      if (!(type in PARSERS)) continue;
      const field = makeField(schema, type, String(option.default ?? ""));
      this.fields.set(name, { field, type });
      this.root.append(make("label", { title: option.description ?? "" }, name, field));
    }
    this.root.hidden = !this.fields.size;
  }

  /** Values of the fields that are not empty. */
  get values(): Record<string, unknown> {
    const values: Record<string, unknown> = {};
    for (const [name, { field, type }] of this.fields) {
      if (field.value !== "") values[name] = PARSERS[type]!(field.value);
    }
    return values;
  }
}

function makeField(schema: Schema, type: string, own: string): Field {
  const words = type === "boolean" ? ["true", "false"] : schema.enum;
  if (words) return make("select", {}, ...["", ...words].map((value) => make("option", { value }, value || `(${own})`)));
  const { minimum = "", maximum = "" } = schema;
  const step = type === "integer" ? 1 : "any";
  return make("input", { type: type === "string" ? "text" : "number", min: minimum, max: maximum, step, placeholder: own });
}
