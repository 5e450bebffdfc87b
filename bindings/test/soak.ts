/**
 * Many generations, half of them aborted at a random moment, with garbage collected between them. Prints what it saw and
 * fails where a stream had not exactly one end, an abort was seen late, or memory grew.
 *
 *     soak.js GENERATIONS [callback|poll]
 */

import assert from "node:assert/strict";
import { Model, native, type Native, type Step } from "eliza-inference";
import { MODEL, PROMPT, collect, random, sleep } from "./support.js";

const [generations, delivery] = [Number(process.argv[2]), process.argv[3] as "callback" | "poll" | undefined];
const AT_ONCE = 8;
const LATEST_ABORT_MS = 6;
const draw = random(11);
assert.ok(collect !== undefined, "start Node with --expose-gc");

/** The library's functions, with the ends of every generation counted. */
const ends: number[] = [];
const inner = native(delivery === undefined ? {} : { delivery });
const counting = new Proxy(inner, {
  get(target, name: keyof Native) {
    const value = target[name];
    if (typeof value !== "function") return value;
    if (name !== "generate") return value.bind(target);
    return (...[handle, options, onStep]: Parameters<Native["generate"]>) => {
      const at = ends.push(0) - 1;
      return target.generate(handle, options, (step: Step) => {
        if (step.done) ends[at] = (ends[at] ?? 0) + 1;
        else assert.equal(ends[at], 0, "a token after the end");
        onStep(step);
      });
    };
  },
});

let aborted = 0;
let latest = 0;

async function generate(model: Model): Promise<void> {
  const abort = new AbortController();
  const wanted = draw() < 0.5;
  let atAbort = -1;
  if (wanted) {
    void sleep(draw() * LATEST_ABORT_MS).then(() => {
      abort.abort("enough");
      atAbort = model.usage().completionTokens;
    });
  }
  const length = wanted ? -1 : 40;
  try {
    for await (const _ of model.stream(PROMPT, { signal: abort.signal, maxTokens: length, ignoreEos: true, temperature: 1 }));
    assert.ok(!wanted || model.usage().finishReason === "context", "an abort was not thrown");
  } catch (why) {
    assert.equal(why, "enough");
    aborted++;
    if (atAbort >= 0) latest = Math.max(latest, model.usage().completionTokens - atAbort);
  }
  // An abort that comes after the end must not reach the next generation.
  if (wanted) await sleep(LATEST_ABORT_MS + 1);
}

async function inARow(count: number): Promise<void> {
  using model = await Model.load(counting, MODEL, { contextSize: 4096, threads: 1 });
  for (let i = 0; i < count; i++) {
    await generate(model);
    if (i % 5 === 0) collect?.();
  }
}

async function atOnce(count: number): Promise<void> {
  await Promise.all(Array.from({ length: AT_ONCE }, () => inARow(Math.ceil(count / AT_ONCE))));
}

async function resident(): Promise<number> {
  for (let i = 0; i < 3; i++) {
    collect?.();
    await sleep(20);
  }
  return process.memoryUsage.rss() / 2 ** 20;
}

/** Rounds that may still be warm-up: a leak grows in every one of them. */
const ROUNDS = 3;

await inARow(generations);
await atOnce(8 * generations);
let after = await resident(); // warm: the allocators of eight threads have what they keep, or nearly so
let [before, growth] = [after, Infinity];
for (let round = 0; round < ROUNDS && growth > 0.05; round++) {
  before = after;
  await inARow(generations);
  await atOnce(generations);
  after = await resident();
  growth = after / before - 1;
}
console.log(
  `${ends.length} generations, ${aborted} aborted, at most ${latest} tokens after an abort, ` +
    `resident ${before.toFixed(1)} -> ${after.toFixed(1)} MiB (${(growth * 100).toFixed(1)} %)`,
);
assert.ok(ends.every((count) => count === 1), "every generation has exactly one end");
assert.ok(aborted > 4 * generations, `${aborted} aborted`);
assert.ok(latest <= 2, `${latest} tokens after an abort`);
assert.ok(growth <= 0.05, `memory grew in each of ${ROUNDS} rounds, in the last from ${before} to ${after} MiB`);
