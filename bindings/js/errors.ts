/** Errors of the library, by code. */

/** The library's status codes by name; `include/eliza_inference.h` documents each and its remedy. */
export const STATUS = {
  ELIZA_ERR_NOT_IMPLEMENTED: -1,
  ELIZA_ERR_INVALID_ARG: -2,
  ELIZA_ERR_BUNDLE_INVALID: -3,
  ELIZA_ERR_FFI_FAULT: -4,
  ELIZA_ERR_OOM: -5,
  ELIZA_ERR_ABI_MISMATCH: -6,
  ELIZA_ERR_CANCELLED: -7,
  ELIZA_ERR_IO: -10,
  ELIZA_ERR_NAN: -20,
  ELIZA_ERR_TRIE: -30,
  ELIZA_ERR_BUSY: -40,
  ELIZA_ERR_DEVICE: -50,
  ELIZA_ERR_SAVED_SLOT: -60,
  ELIZA_ERR_REMOTE: -70,
} as const;

/** The name of a status code. `ELIZA_ERR_UNKNOWN` is a code that this package does not know. */
export type ErrorCode = keyof typeof STATUS | "ELIZA_ERR_UNKNOWN";

/** What every failing call of this package throws, or rejects with, but for aborts, which throw the signal's reason. */
export class InferenceError extends Error {
  override readonly name = "InferenceError";
  /** The status by name, for example `"ELIZA_ERR_TRIE"`. */
  readonly code: ErrorCode;
  /** The status as the library returns it, for example -30. */
  readonly status: number;

  /** `message` is the library's own text: it names the path, key, token or limit. */
  constructor(status: number, message: string) {
    super(message);
    const known = Object.entries(STATUS).find(([, value]) => value === status);
    this.code = (known?.[0] as ErrorCode | undefined) ?? "ELIZA_ERR_UNKNOWN";
    this.status = status;
  }
}
