//! The table of pre-tokenizers, by the values of `tokenizer.ggml.pre`.
//!
//! Patterns are written over collapsed text (see [`super::unicode`]); cased letter categories all mean "letter" there,
//! and `[^a-z]`, `[^A-Z]` after a look-ahead for letters distinguish only ASCII case. Characters beyond ASCII are
//! written as escapes: several are canonically equivalent to others, which tools may silently put in their place.

use super::split::Stage;
use Stage::{DigitGroups, Gpt2, Kimi, Lines, Pattern, Thousands, WidePattern, Words};

/// How the words of a BPE vocabulary are written before merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writing {
    /// Each byte as the character that GPT-2 gave it.
    Bytes,
    /// As it is, each space as U+2581.
    Escaped,
}

/// One pre-tokenizer.
#[derive(Debug)]
pub(super) struct Pre {
    /// The values of the key that name it.
    names: &'static [&'static str],
    pub(super) stages: &'static [Stage],
    pub(super) writing: Writing,
    /// A word that is a token is taken whole, whatever the merges say.
    pub(super) ignore_merges: bool,
    pub(super) add_bos: bool,
    pub(super) clean_spaces: bool,
    /// There is a begin-of-text token only where the file names one.
    pub(super) no_default_bos: bool,
    /// A word of line feeds that is a token is taken whole, and a begin-of-text token is always added.
    pub(super) gemma4: bool,
    /// A vocabulary without merges is whole.
    pub(super) merges_optional: bool,
}

const BASE: Pre = Pre {
    names: &[],
    stages: &[],
    writing: Writing::Bytes,
    ignore_merges: false,
    add_bos: false,
    clean_spaces: true,
    no_default_bos: false,
    gemma4: false,
    merges_optional: false,
};
/// Most newer vocabularies: text is given back as the tokens have it.
const EXACT: Pre = Pre { clean_spaces: false, ..BASE };

const LLAMA3: Stage = Words { digits: 3, marks: false };
const QWEN2: Stage = Words { digits: 1, marks: false };
const DIGIT: Stage = Pattern(r"\p{N}");
const THREE_DIGITS: Stage = Pattern(r"\p{N}{1,3}");
const ASCII_TRIPLE: Stage = Pattern("[0-9][0-9][0-9]");
const KANJI_KANA: Stage = WidePattern("[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+");
const DEEPSEEK3_WORDS: Stage = Pattern(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
));
const SENTENCE_WORDS: Stage = WidePattern(" ?[^(\\s|.,!?\u{2026}\u{3002}\u{ff0c}\u{3001}\u{964}\u{6d4}\u{60c})]+");

const IDEOGRAPHS_HANGUL: Stage = WidePattern("[\u{4e00}-\u{9fa5}\u{800}-\u{4e00}\u{ac00}-\u{d7ff}]+");
/// The letters that have case, as one vocabulary's makers listed them.
const CASED_LETTERS: Stage = WidePattern(concat!(
    "\\s?[A-Za-z\u{b5}\u{c0}-\u{d6}\u{d8}-\u{f6}\u{f8}-\u{1ba}\u{1bc}-\u{1bf}\u{1c4}-\u{293}",
    "\u{295}-\u{2af}\u{370}-\u{373}\u{376}\u{377}\u{37b}-\u{37d}\u{37f}\u{386}\u{388}-\u{38a}\u{38c}",
    "\u{38e}-\u{3a1}\u{3a3}-\u{3f5}\u{3f7}-\u{481}\u{48a}-\u{52f}\u{531}-\u{556}\u{10a0}-\u{10c5}",
    "\u{13a0}-\u{13f5}\u{13f8}-\u{13fd}\u{1c90}-\u{1cba}\u{1cbd}-\u{1cbf}\u{1d00}-\u{1d2b}",
    "\u{1d6b}-\u{1d77}\u{1d79}-\u{1d9a}\u{1e00}-\u{1f15}\u{1f18}-\u{1f1d}\u{1f20}-\u{1f45}",
    "\u{1f48}-\u{1f4d}\u{1f50}-\u{1f57}\u{1f59}\u{1f5b}\u{1f5d}\u{1f5f}-\u{1f7d}\u{1f80}-\u{1fb4}",
    "\u{1fb6}-\u{1fbc}\u{1fbe}\u{1fc2}-\u{1fc4}\u{1fc6}-\u{1fcc}\u{1fd0}-\u{1fd3}\u{1fd6}-\u{1fdb}",
    "\u{1fe0}-\u{1fec}\u{1ff2}-\u{1ff4}\u{1ff6}-\u{1ffc}\u{2102}\u{2107}\u{210a}-\u{2113}\u{2115}",
    "\u{2119}-\u{211d}\u{2124}\u{2126}\u{2128}\u{212a}-\u{212d}\u{212f}-\u{2134}\u{2139}\u{213c}-\u{213f}",
    "\u{2145}-\u{2149}\u{214e}\u{2183}\u{2184}\u{2c00}-\u{2c7b}\u{2c7e}-\u{2ce4}\u{2ceb}-\u{2cee}\u{2cf2}",
    "\u{2cf3}\u{a640}-\u{a66d}\u{a680}-\u{a69b}\u{a722}-\u{a76f}\u{a771}-\u{a787}\u{a78b}-\u{a78e}",
    "\u{ab70}-\u{abbf}\u{fb00}-\u{fb06}\u{fb13}-\u{fb17}\u{ff21}-\u{ff3a}\u{ff41}-\u{ff5a}",
    "\u{10400}-\u{1044f}\u{104b0}-\u{104d3}\u{104d8}-\u{104fb}\u{10c80}-\u{10cb2}\u{10cc0}-\u{10cf2}",
    "\u{118a0}-\u{118df}\u{1e900}-\u{1e943}]+",
));

/// Contractions in any case.
macro_rules! contractions {
    () => {
        "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
    };
}
/// Letter words of the GPT-4o family, cut where lower case turns to upper: the classes of upper and lower case, and
/// what may follow.
macro_rules! cased_words {
    ($upper:literal, $lower:literal, $suffix:expr) => {
        concat!(
            r"[^\r\n\p{L}\p{N}]?",
            $upper,
            "*",
            $lower,
            "+",
            $suffix,
            "|",
            r"[^\r\n\p{L}\p{N}]?",
            $upper,
            "+",
            $lower,
            "*",
            $suffix
        )
    };
}
/// Symbols and white space after the words of the GPT-4o family.
macro_rules! symbols_and_space {
    () => {
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    };
}

const GPT4O: Stage = Pattern(concat!(
    cased_words!(r"((?=[\p{L}])([^a-z]))", r"((?=[\p{L}])([^A-Z]))", concat!(contractions!(), "?")),
    r"|\p{N}{1,3}",
    symbols_and_space!()
));
const GRANITE: Stage = Pattern(concat!(
    cased_words!(r"((?=[\p{L}\p{M}])([^a-z]))", r"((?=[\p{L}\p{M}])([^A-Z]))", concat!(contractions!(), "?")),
    r"|\p{N}{1,3}",
    symbols_and_space!()
));
const TEKKEN: Stage = Pattern(concat!(
    cased_words!(r"((?=[\p{L}])([^a-z]))", r"((?=[\p{L}])([^A-Z]))", ""),
    r"|\p{N}",
    symbols_and_space!()
));
const UNCASED_THREE: Stage = Pattern(concat!(
    cased_words!(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", concat!(contractions!(), "?")),
    r"|\p{N}{1,3}",
    symbols_and_space!()
));
const UNCASED_ONE: Stage = Pattern(concat!(
    cased_words!(r"[\p{L}\p{M}]", r"[\p{L}\p{M}]", concat!(contractions!(), "?")),
    r"|\p{N}",
    symbols_and_space!()
));

static TABLE: &[Pre] = &[
    Pre {
        names: &["default"],
        stages: &[Pattern(r"[\p{P}\$\+<=>\^~\|]+"), Gpt2, Pattern(r"\p{N}+"), ASCII_TRIPLE],
        ..BASE
    },
    Pre {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        stages: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
        ..BASE
    },
    Pre { names: &["dbrx", "smaug-bpe"], stages: &[LLAMA3], ..BASE },
    Pre { names: &["chatglm-bpe", "glm4"], stages: &[LLAMA3], no_default_bos: true, ..BASE },
    Pre { names: &["glm5"], stages: &[LLAMA3], no_default_bos: true, ignore_merges: true, ..BASE },
    Pre {
        names: &["jais-2"],
        stages: &[Pattern(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+",
            r"|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)",
            r"|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"
        ))],
        ..BASE
    },
    Pre {
        names: &[
            "gpt-2",
            "phi-2",
            "jina-es",
            "jina-de",
            "gigachat",
            "jina-v2-es",
            "jina-v2-de",
            "a.x-4.0",
            "mellum",
            "modern-bert",
            "exaone4",
            "mpt",
            "olmo",
            "jais",
            "jina-v1-en",
            "jina-v2-code",
            "roberta-bpe",
        ],
        stages: &[Gpt2],
        ..BASE
    },
    Pre { names: &["trillion", "granite-docling"], stages: &[Gpt2], ..EXACT },
    Pre {
        names: &["starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"],
        stages: &[DIGIT, Gpt2],
        ..BASE
    },
    Pre { names: &["command-r", "smollm"], stages: &[DIGIT, Gpt2], ..EXACT },
    Pre {
        names: &["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "hunyuan", "solar-open", "grok-2"],
        stages: &[QWEN2],
        ..EXACT
    },
    Pre { names: &["stablelm2", "megrez"], stages: &[QWEN2], ..BASE },
    Pre { names: &["qwen35"], stages: &[Words { digits: 1, marks: true }], ..EXACT },
    Pre { names: &["laguna"], stages: &[Lines, QWEN2], ..EXACT },
    Pre {
        names: &["ufakzeka"],
        stages: &[Pattern(r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")],
        ..EXACT
    },
    Pre {
        names: &["seed-coder"],
        stages: &[Pattern(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
        ))],
        ..EXACT
    },
    Pre {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        stages: &[Pattern(concat!(
            "'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])",
            r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        ))],
        ..EXACT
    },
    Pre {
        names: &["minicpm5"],
        stages: &[
            THREE_DIGITS,
            Pattern(concat!(
                contractions!(),
                r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
            )),
        ],
        ignore_merges: true,
        ..BASE
    },
    Pre { names: &["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"], stages: &[GPT4O], ..EXACT },
    Pre { names: &["granite-embed-multi-97m"], stages: &[GRANITE], ignore_merges: true, ..EXACT },
    Pre { names: &["tiny_aya", "cohere2moe"], stages: &[DigitGroups, UNCASED_THREE], ..EXACT },
    Pre { names: &["tekken"], stages: &[TEKKEN], ignore_merges: true, add_bos: true, ..EXACT },
    Pre {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        stages: &[THREE_DIGITS, KANJI_KANA, DEEPSEEK3_WORDS],
        ..EXACT
    },
    Pre {
        names: &["spark2_5"],
        stages: &[
            THREE_DIGITS,
            KANJI_KANA,
            Pattern(concat!(
                r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
                r"| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"
            )),
            DIGIT,
        ],
        ..EXACT
    },
    Pre {
        names: &["afmoe"],
        stages: &[
            DigitGroups,
            WidePattern(concat!(
                "[\u{4e00}-\u{9fff}\u{3400}-\u{4dbf}\u{8c48}-\u{faff}\u{3040}-\u{309f}\u{30a0}-\u{30ff}",
                "\u{ff65}-\u{ff9f}\u{2f00}-\u{2fdf}\u{e40}-\u{e7f}\u{e80}-\u{eff}\u{1780}-\u{17ff}",
                "\u{1000}-\u{109f}\u{aa60}-\u{aa7f}\u{a9e0}-\u{a9ff}\u{ac00}-\u{d7af}\u{1100}-\u{11ff}]+",
            )),
            DEEPSEEK3_WORDS,
        ],
        ..EXACT
    },
    Pre {
        names: &["deepseek-llm"],
        stages: &[
            Pattern(r"[\r\n]"),
            CASED_LETTERS,
            WidePattern("\\s?[!-/:-~\u{ff01}-\u{ff0f}\u{ff1a}-\u{ff5e}\u{2018}-\u{201f}\u{3000}-\u{3002}]+"),
            Pattern(r"\s+$"),
            IDEOGRAPHS_HANGUL,
            Pattern(r"\p{N}+"),
        ],
        ..EXACT
    },
    Pre {
        names: &["deepseek-coder"],
        stages: &[Pattern(r"[\r\n]"), Pattern(r"\s?\p{L}+"), Pattern(r"\s?\p{P}+"), IDEOGRAPHS_HANGUL, DIGIT],
        ..EXACT
    },
    Pre { names: &["falcon"], stages: &[Pattern(r"[\p{P}\$\+<=>\^~\|`]+"), Gpt2, ASCII_TRIPLE], ..BASE },
    Pre { names: &["bloom", "gpt3-finnish"], stages: &[SENTENCE_WORDS], ..BASE },
    Pre { names: &["poro-chat"], stages: &[SENTENCE_WORDS], ..EXACT },
    Pre { names: &["viking"], stages: &[SENTENCE_WORDS, DIGIT], ..EXACT },
    Pre {
        names: &["youtu"],
        stages: &[
            WidePattern(concat!(
                "[\u{ac00}-\u{d7a3}\u{3131}-\u{318e}]+|[\u{ff01}\u{2026}\u{201c}\u{201d}\u{2018}\u{2019}",
                "\u{2014}\u{ff1a}\u{ff1b}\u{ff0c}\u{3001}-\u{303f}\u{fe30}-\u{fe4f}]+|[\u{3105}-\u{312f}]+|",
                "[\u{4e00}-\u{9fa5}\u{3040}-\u{309f}\u{30a0}-\u{30ff}]+",
            )),
            UNCASED_ONE,
        ],
        ignore_merges: true,
        ..EXACT
    },
    Pre {
        names: &["chameleon"],
        stages: &[
            Pattern("<sentinel:[0-9]+>"),
            Pattern("(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z"),
            Pattern(r"([\t\n]|    |  )"),
            DIGIT,
            Pattern(r"[\p{P}!-/:-@\[-`{-~]"),
            Gpt2,
        ],
        add_bos: true,
        ..EXACT
    },
    Pre {
        names: &["exaone-moe"],
        stages: &[Pattern(concat!(
            contractions!(),
            r"|[^\r\n\p{L}\p{N}]?\p{L}[\p{L}\p{M}]*(?: \p{L}[\p{L}\p{M}]*)*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?",
            r"|\s*[\r\n]",
            r"|\s+(?!\S)|\s+"
        ))],
        ..BASE
    },
    Pre { names: &["superbpe"], stages: &[Pattern(r"\p{N}+"), Thousands], ..EXACT },
    Pre { names: &["kimi-k2"], stages: &[Kimi], merges_optional: true, ..EXACT },
    Pre {
        names: &["gemma4", "granite-embed-multi-311m"],
        stages: &[Lines],
        writing: Writing::Escaped,
        gemma4: true,
        ..BASE
    },
    Pre { names: &["sarvam-moe"], stages: &[Lines], writing: Writing::Escaped, ..EXACT },
];

/// Names of pre-tokenizers that are not implemented.
const NOT_DONE: &[&str] = &["mmbert", "whitespace"];

/// What is known of a name.
pub(super) enum Known {
    /// It names this pre-tokenizer.
    Done(&'static Pre),
    /// It names a pre-tokenizer that is not implemented.
    NotDone,
    /// The name is unknown.
    Unknown,
}

/// The pre-tokenizer that a value of `tokenizer.ggml.pre` names.
pub(super) fn find(name: &str) -> Known {
    match TABLE.iter().find(|pre| pre.names.contains(&name)) {
        Some(pre) => Known::Done(pre),
        None if NOT_DONE.contains(&name) => Known::NotDone,
        None => Known::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::super::split::Splitter;
    use super::*;

    #[test]
    fn every_name_is_known_once_and_its_stages_compile() {
        let names: Vec<_> = TABLE.iter().flat_map(|pre| pre.names).chain(NOT_DONE).collect();
        for (i, name) in names.iter().enumerate() {
            assert!(!names[..i].contains(name), "{name}");
        }
        for pre in TABLE {
            Splitter::new(pre.stages).unwrap();
        }
    }
}
