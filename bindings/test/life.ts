/**
 * A process that ends while a generation runs.
 *
 *     life.js finish|exit|throw|reject|worker|worker-exit|worker-throw MILLISECONDS [callback|poll]
 */

import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";
import { load } from "eliza-inference";
import { MODEL, PROMPT, sleep } from "./support.js";

const [how = "", ms, delivery] = isMainThread ? process.argv.slice(2) : (workerData as string[]);
const options = delivery === undefined ? {} : { delivery: delivery as "callback" | "poll" };

async function generate(): Promise<void> {
  const model = await load(MODEL, { contextSize: 8192, threads: 1, ...options });
  parentPort?.postMessage("started");
  setTimeout(end, Number(ms));
  while (true) for await (const _ of model.stream(PROMPT, { ignoreEos: true, temperature: 1 }));
}

function end(): void {
  if (how.endsWith("exit")) process.exit(0);
  if (how.endsWith("throw")) throw new Error("the host failed");
  if (how === "reject") void Promise.reject(new Error("the host failed"));
}

if (!isMainThread) {
  await generate();
} else if (how.startsWith("worker")) {
  const worker = new Worker(new URL(import.meta.url), { workerData: [how, ms] });
  worker.on("error", () => {});
  const gone = new Promise((resolve) => worker.once("exit", resolve));
  await new Promise((resolve) => worker.once("message", resolve));
  if (how === "worker") {
    await sleep(Number(ms));
    await worker.terminate();
  }
  await gone;
  console.log("ended"); // and the process ends by itself
} else if (how === "finish") {
  // Nothing but the generation keeps the process alive.
  void (async () => {
    const model = await load(MODEL, { contextSize: 512, threads: 1, ...options });
    for await (const { done } of model.stream(PROMPT, { ignoreEos: true })) if (done) console.log("finished");
  })();
} else {
  // Without a top-level await: while one is pending Bun prints an uncaught error and goes on.
  void generate();
}
