/** A process that ends right after a warning of the library. */

import { setLogSink } from "eliza-inference";
import { PROMPT, open, whole } from "./support.js";

setLogSink((level, message) => console.log(level, message));
const model = await open();
const trie = { modelId: "another", descriptors: [{ path: "a", leaves: [{ name: "x", tokens: [300] }] }] };
await whole(model, PROMPT, { trie, maxTokens: 1 });
