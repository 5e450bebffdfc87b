/** The entry for Node. */

import { locate } from "../js/locate.js";
import { Model } from "../js/model.js";
import type { LibraryOptions, Native, OpenOptions } from "../js/native.js";
import type { ElizaStreamingAbi } from "../js/streaming-abi.js";
import { FILE, addon } from "./addon.js";
import { NodeNative } from "./native.js";
import { NodeStreamingAbi } from "./streaming-abi.js";

export * from "../js/index.js";

/** The functions of the addon, as `Model` uses them. */
export function native(options: LibraryOptions = {}): Native {
  return new NodeNative(addon(locate(options.library, FILE)));
}

/** The streaming interface under the names of the C functions. */
export function streamingAbi(options: LibraryOptions = {}): ElizaStreamingAbi {
  return new NodeStreamingAbi(new NodeNative(addon(locate(options.library, FILE))));
}

/** Opens the GGUF file at `path`, off the JavaScript thread. */
export async function load(path: string, options: OpenOptions & LibraryOptions = {}): Promise<Model> {
  return Model.load(native(options), path, options);
}
