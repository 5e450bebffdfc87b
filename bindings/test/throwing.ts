/**
 * A process whose token callback throws.
 *
 *     throwing.js callback|poll
 */

import { streamingAbi } from "eliza-inference";
import { MODEL, sleep } from "./support.js";

process.on("uncaughtException", (error) => console.log("uncaught", error.message));
const ffi = streamingAbi({ delivery: process.argv[2] as "callback" | "poll" });
const handle = ffi.eliza_inference_llm_stream_open(MODEL, 512, 1, 0);
if (handle === null) throw new Error("open failed");
ffi.eliza_inference_llm_stream_prefill(handle, Int32Array.of(5, 6, 7), 0);
let [tokens, ends] = [0, 0];
ffi.eliza_inference_llm_stream_generate(handle, -1, 0, 1, (_token, _text, done) => {
  if (done) ends++;
  else tokens++;
  if (!done) throw new Error("the host failed");
});
while (ends === 0) await sleep(1);
await sleep(5);
console.log(`${tokens} tokens, ${ends} end, status ${ffi.eliza_inference_llm_stream_status(handle)}`);
ffi.eliza_inference_llm_stream_close(handle);
