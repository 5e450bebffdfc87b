/** The entry for Bun. */

import { camelCased, type Device, type MemoryPlan, type Metadata, type MetadataValue } from "../js/describe.js";
import { locate } from "../js/locate.js";
import { type LogSink, listen } from "../js/log.js";
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

/** The devices of this machine, best first. */
export async function devices(options: LibraryOptions = {}): Promise<Device[]> {
  return camelCased(await native(options).devices()) as Device[];
}

/** What {@link load} with the same options would take of each device's memory. Nothing is loaded. */
export async function plan(path: string, options: OpenOptions & LibraryOptions = {}): Promise<MemoryPlan> {
  return camelCased(await native(options).plan(path, options)) as MemoryPlan;
}

/** The metadata of a GGUF file: the value of a key, or of all. Its header is all that is read. */
export async function fileMetadata(path: string, key?: undefined, options?: LibraryOptions): Promise<Metadata>;
export async function fileMetadata(path: string, key: string, options?: LibraryOptions): Promise<MetadataValue>;
export async function fileMetadata(path: string, key?: string, options: LibraryOptions = {}): Promise<unknown> {
  return native(options).fileMetadata(path, key ?? null);
}

/**
 * Sends the library's log lines, its warnings among them, to a function, some 50 ms late and at the end of the process at
 * last; `null` ends that. The process has one. Without it there are no log lines.
 */
export function setLogSink(sink: LogSink | null, options: LibraryOptions = {}): void {
  listen(native(options), sink);
}
