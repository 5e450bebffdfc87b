/**
 * An environment beside others, or one that ends in the middle of something.
 *
 *     as a Worker with workerData "whole": posts what a stream gives, three times; "busy": posts, loads, evaluates a prompt
 *     environment.js MILLISECONDS: loads, and ends the process in so many
 */

import { isMainThread, parentPort, workerData } from "node:worker_threads";
import { load } from "eliza-inference";
import { MODEL, PROMPT, open, whole } from "./support.js";

if (isMainThread) {
  load(MODEL).catch(() => {});
  setTimeout(() => process.exit(0), Number(process.argv[2]));
} else if (workerData === "whole") {
  using model = await open();
  for (let i = 0; i < 3; i++) {
    parentPort?.postMessage(await whole(model, PROMPT, { maxTokens: 30, temperature: 0, ignoreEos: true }));
  }
} else {
  parentPort?.postMessage("up");
  const model = await load(MODEL, { contextSize: 4096, threads: 1 });
  await whole(model, Int32Array.from({ length: 4000 }, (_, i) => 5 + (i % 400)));
}
