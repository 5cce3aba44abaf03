/** Types of the functions of node that the tests use, instead of @types/node. */

declare module "node:test" {
  export function test(name: string, run: () => void | Promise<void>): void;
}

declare module "node:assert/strict" {
  interface Assert {
    ok(value: unknown, message?: string): void;
    equal(actual: unknown, expected: unknown, message?: string): void;
    notEqual(actual: unknown, expected: unknown): void;
    deepEqual(actual: unknown, expected: unknown): void;
    throws(run: () => unknown, expected: RegExp): void;
    rejects(promise: Promise<unknown>, expected: RegExp): Promise<void>;
  }
  const assert: Assert;
  export default assert;
}

declare module "node:zlib" {
  export function deflateSync(bytes: Uint8Array): { toString(encoding: "base64"): string };
}

declare const Buffer: { alloc(size: number, fill: string): Uint8Array };
