/** Reads the beginning of a JSON text. */

/** The end of the text came before that of a value. */
const CUT = Symbol("cut");

const ESCAPES: Readonly<Record<string, string>> = {
  '"': '"', "\\": "\\", "/": "/", b: "\b", f: "\f", n: "\n", r: "\r", t: "\t",
};

/**
 * What the beginning of a JSON text says: the value as far as it is written. Texts, lists and objects that have begun are given with
 * what they have so far; a key, a number or a word (`true`) only once it is certain that it is whole, or `whole` says that nothing
 * follows. `undefined` where there is no value yet.
 *
 * Throws a `SyntaxError` where the text cannot be the beginning of JSON.
 */
export function partialJson(text: string, { whole = false }: { whole?: boolean } = {}): unknown {
  const reader = new Reader(text, whole);
  const value = reader.value();
  if (value === CUT) return undefined;
  reader.end();
  return value;
}

class Reader {
  readonly #text: string;
  readonly #whole: boolean;
  #at = 0;

  constructor(text: string, whole: boolean) {
    this.#text = text;
    this.#whole = whole;
  }

  /** Fails where something follows the value. */
  end(): void {
    if (this.#peek() !== undefined) this.#fail();
  }

  value(): unknown {
    const next = this.#peek();
    if (next === undefined) return CUT;
    if (next === "{") return this.#object();
    if (next === "[") return this.#array();
    if (next === '"') return this.#string().text;
    if (next === "-" || (next >= "0" && next <= "9")) return this.#number();
    return this.#word();
  }

  /** The next character that is no white space, which stays. */
  #peek(): string | undefined {
    while (" \t\n\r".includes(this.#text[this.#at] ?? "x")) this.#at++;
    return this.#text[this.#at];
  }

  #fail(): never {
    throw new SyntaxError(`Not the beginning of JSON: unexpected ${JSON.stringify(this.#text[this.#at])} at ${this.#at}`);
  }

  /** Whether a list or an object goes on after one of its parts; `undefined` where the text ends. */
  #goesOn(close: string): boolean | undefined {
    const next = this.#peek();
    if (next === undefined) return undefined;
    if (next !== "," && next !== close) this.#fail();
    this.#at++;
    return next === ",";
  }

  #object(): Record<string, unknown> {
    const object: Record<string, unknown> = {};
    this.#at++;
    if (this.#peek() === "}") {
      this.#at++;
      return object;
    }
    do {
      const next = this.#peek();
      if (next === undefined) return object;
      if (next !== '"') this.#fail();
      const key = this.#string();
      const colon = this.#peek();
      if (!key.closed || colon === undefined) return object;
      if (colon !== ":") this.#fail();
      this.#at++;
      const value = this.value();
      if (value === CUT) return object;
      // A key such as __proto__ is a key like others.
      Object.defineProperty(object, key.text, { value, writable: true, enumerable: true, configurable: true });
    } while (this.#goesOn("}") === true);
    return object;
  }

  #array(): unknown[] {
    const list: unknown[] = [];
    this.#at++;
    if (this.#peek() === "]") {
      this.#at++;
      return list;
    }
    do {
      const value = this.value();
      if (value === CUT) return list;
      list.push(value);
    } while (this.#goesOn("]") === true);
    return list;
  }

  #string(): { text: string; closed: boolean } {
    let text = "";
    for (this.#at++; ; ) {
      const next = this.#text[this.#at];
      if (next === undefined) return { text: paired(text), closed: false };
      if (next < " ") this.#fail();
      if (next === '"') {
        this.#at++;
        return { text, closed: true };
      }
      if (next !== "\\") {
        text += next;
        this.#at++;
        continue;
      }
      const escape = this.#text[this.#at + 1];
      if (escape === undefined) {
        this.#at++;
      } else if (escape === "u") {
        const digits = this.#text.slice(this.#at + 2, this.#at + 6);
        if (!/^[0-9a-fA-F]*$/.test(digits)) this.#fail();
        if (digits.length === 4) text += String.fromCharCode(parseInt(digits, 16));
        this.#at += 2 + digits.length;
      } else {
        const meant = ESCAPES[escape];
        if (meant === undefined) this.#fail();
        text += meant;
        this.#at += 2;
      }
    }
  }

  #number(): unknown {
    const [written = ""] = /^[-+.0-9eE]+/.exec(this.#text.slice(this.#at)) ?? [];
    const isCut = this.#at + written.length === this.#text.length;
    const whole = /^-?(0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?$/.test(written);
    if (isCut && !(this.#whole && whole)) {
      if (!/^-?((0|[1-9]\d*)((\.\d*)?|(\.\d+)?[eE][-+]?\d*))?$/.test(written)) this.#fail();
      this.#at += written.length;
      return CUT;
    }
    if (!whole) this.#fail();
    this.#at += written.length;
    return Number(written);
  }

  #word(): unknown {
    const rest = this.#text.slice(this.#at, this.#at + 5);
    for (const [word, value] of [["true", true], ["false", false], ["null", null]] as const) {
      if (rest.startsWith(word)) {
        this.#at += word.length;
        return value;
      }
      if (rest !== "" && word.startsWith(rest)) {
        this.#at += rest.length;
        return CUT;
      }
    }
    return this.#fail();
  }
}

/** A text without half of a pair at its end. */
function paired(text: string): string {
  const last = text.charCodeAt(text.length - 1);
  return last >= 0xd800 && last <= 0xdbff ? text.slice(0, -1) : text;
}
