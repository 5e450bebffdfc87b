//! The table of pre-tokenizers: what each value of `tokenizer.ggml.pre` stands for.
//!
//! Patterns are written over collapsed text (see [`super::unicode`]); cased letter categories all mean "letter" there,
//! and `[^a-z]`, `[^A-Z]` behind a look-ahead for letters tell ASCII case apart and nothing else.

use super::split::Stage;
use Stage::{DigitGroups, Gpt2, Kimi, Lines, Pattern, Thousands, WidePattern, Words};

/// How the words of a BPE vocabulary are written before merging.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writing {
    /// Each byte as the character that GPT-2 gave it.
    Bytes,
    /// As it is, spaces included.
    Plain,
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
const KANJI_KANA: Stage = WidePattern("[一-龥぀-ゟ゠-ヿ]+");
const DEEPSEEK3_WORDS: Stage = Pattern(concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"##,
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
));
const SENTENCE_WORDS: Stage = WidePattern(r" ?[^(\s|.,!?…。，、।۔،)]+");

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
/// Symbols and white space behind the words of the GPT-4o family.
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
    Pre { names: &["chatglm-bpe"], stages: &[LLAMA3], no_default_bos: true, ..BASE },
    Pre { names: &["glm4", "glm5"], stages: &[LLAMA3], no_default_bos: true, ignore_merges: true, ..BASE },
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
            WidePattern("[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+"),
            DEEPSEEK3_WORDS,
        ],
        ..EXACT
    },
    Pre {
        names: &["deepseek-llm"],
        stages: &[
            Pattern(r"[\r\n]"),
            WidePattern(concat!(
                r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅ",
                "ὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⲳⲳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿ",
                "ﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+"
            )),
            WidePattern(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"),
            Pattern(r"\s+$"),
            WidePattern("[一-龥ࠀ-一가-퟿]+"),
            Pattern(r"\p{N}+"),
        ],
        ..EXACT
    },
    Pre {
        names: &["deepseek-coder"],
        stages: &[
            Pattern(r"[\r\n]"),
            Pattern(r"\s?\p{L}+"),
            Pattern(r"\s?\p{P}+"),
            WidePattern("[一-龥ࠀ-一가-퟿]+"),
            DIGIT,
        ],
        ..EXACT
    },
    Pre { names: &["falcon"], stages: &[Pattern(r"[\p{P}\$\+<=>\^~\|`]+"), Gpt2, ASCII_TRIPLE], ..BASE },
    Pre { names: &["bloom", "gpt3-finnish"], stages: &[SENTENCE_WORDS], ..BASE },
    Pre { names: &["poro-chat"], stages: &[SENTENCE_WORDS], ..EXACT },
    Pre { names: &["viking"], stages: &[SENTENCE_WORDS, DIGIT], ..EXACT },
    Pre {
        names: &["youtu"],
        stages: &[WidePattern("[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+|[一-龥぀-ゟ゠-ヿ]+"), UNCASED_ONE],
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
            r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]",
            r"|\s+(?!\S)|\s+"
        ))],
        ..BASE
    },
    Pre { names: &["superbpe"], stages: &[Pattern(r"\p{N}+"), Thousands], ..EXACT },
    Pre { names: &["kimi-k2"], stages: &[Kimi], merges_optional: true, ..EXACT },
    Pre { names: &["whitespace"], stages: &[Pattern(r"\S+")], writing: Writing::Plain, ..BASE },
    Pre {
        names: &["gemma4", "granite-embed-multi-311m"],
        stages: &[Lines],
        writing: Writing::Escaped,
        gemma4: true,
        ..BASE
    },
    Pre { names: &["sarvam-moe"], stages: &[Lines], writing: Writing::Escaped, ..EXACT },
];

/// Pre-tokenizers that are known by name and not done yet.
const NOT_DONE: &[&str] = &["mmbert"];

/// What is known of a name.
pub(super) enum Known {
    /// It stands for this pre-tokenizer.
    Done(&'static Pre),
    /// It is a pre-tokenizer that this library does not do.
    NotDone,
    /// Nobody knows it.
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
