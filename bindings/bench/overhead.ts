/**
 * What a token costs in this runtime over the C interface, where the model does nothing: a trie with one leaf forces every
 * token, and the last of a run are not evaluated. Medians of runs of some thousand tokens, from generate to the end.
 */

import { spawnSync } from "node:child_process";
import { mkdtempSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { native } from "eliza-inference";
import { IN_BUN, MODEL, WAYS } from "../test/support.js";

const [TOKENS, RUNS] = [3000, 31];
const library = process.env["ELIZA_INFERENCE_LIBRARY"] ?? "";
const root = process.env["ELIZA_ROOT"] ?? ".";

/** The same in C: nanoseconds a token by callback and by poll. */
function inC(): number[] {
  const program = join(mkdtempSync(join(tmpdir(), "eliza-")), "overhead");
  const source = join(root, "bindings/bench/overhead.c");
  const linked = ["-L", dirname(library), "-lelizainference", `-Wl,-rpath,${dirname(library)}`];
  // The library is known to programs by a versioned name, which only an installed one has beside it.
  const env = { ...process.env, LD_PRELOAD: join(dirname(library), "libelizainference.so") };
  for (const [command, args] of [
    ["cc", ["-O2", "-I", join(root, "include"), "-o", program, source, ...linked]],
    [program, [MODEL, String(TOKENS), String(RUNS)]],
  ] as const) {
    const { status, stdout, stderr } = spawnSync(command, args, { encoding: "utf8", env });
    if (status !== 0) throw new Error(stderr);
    if (command === program) return stdout.trim().split("\n").map(Number);
  }
  return [];
}

async function here(delivery: "callback" | "poll"): Promise<number> {
  const functions = native({ delivery });
  const handle = await functions.open(MODEL, { contextSize: 4096, threads: 1 });
  const tokens = Array.from({ length: TOKENS }, (_, i) => 300 + (i % 100));
  const trie = { modelId: "", descriptors: [{ path: "a", leaves: [{ name: "", tokens }] }] };
  functions.setTrie(handle, JSON.stringify(trie), 0);
  const times: number[] = [];
  let length = 0;
  for (let run = 0; run < RUNS; run++) {
    await functions.prefill(handle, Int32Array.of(300, 301), 0);
    const began = performance.now();
    await functions.generate(handle, { maxTokens: TOKENS, temperature: 0, topP: 1 }, ({ text }) => void (length += text.length));
    times.push(((performance.now() - began) * 1e6) / TOKENS);
  }
  functions.close(handle);
  if (length === 0) throw new Error("There was no text");
  return times.sort((a, b) => a - b)[RUNS >> 1] ?? NaN;
}

const c = inC();
for (const [index, delivery] of WAYS.entries()) {
  const [mine, theirs] = [await here(delivery), c[index] ?? NaN];
  const ns = (value: number) => `${value.toFixed(0)} ns`;
  console.log(
    `${IN_BUN ? "Bun" : "Node"} ${delivery}: ${ns(mine)} a token, in C ${ns(theirs)}: ${((mine - theirs) / 1000).toFixed(2)} µs over it`,
  );
}
