/** The entry for Bun. */

import { locate } from "../js/locate.js";
import { Model } from "../js/model.js";
import type { LibraryOptions, Native, OpenOptions } from "../js/native.js";
import type { ElizaStreamingAbi } from "../js/streaming-abi.js";
import { FILE, Library } from "./library.js";
import { BunNative } from "./native.js";
import { BunStreamingAbi } from "./streaming-abi.js";

export * from "../js/index.js";

const loaded = new Map<string, Library>();

function library(options: LibraryOptions): Library {
  const path = locate(options.library, FILE);
  let found = loaded.get(path);
  if (found === undefined) loaded.set(path, (found = new Library(path)));
  return found;
}

/** The functions of the library, as `Model` uses them. */
export function native(options: LibraryOptions = {}): Native {
  return new BunNative(library(options), options.delivery);
}

/** The streaming interface under the names of the C functions. */
export function streamingAbi(options: LibraryOptions = {}): ElizaStreamingAbi {
  return new BunStreamingAbi(library(options), options.delivery);
}

/** Opens the GGUF file at `path`. Blocks while it is loaded. */
export function load(path: string, options: OpenOptions & LibraryOptions = {}): Promise<Model> {
  return Model.load(native(options), path, options);
}
