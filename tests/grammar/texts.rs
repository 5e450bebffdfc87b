//! Grammars, vocabularies and feeds that several tests use.

use crate::testing;
use elizainference::Token;
use elizainference::gguf::File;
use elizainference::grammar::{Grammar, GrammarOptions, GrammarState, Rules};
use elizainference::vocab::Vocab;
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

pub fn vocab(path: &Path) -> Arc<Vocab> {
    Arc::new(Vocab::from_gguf(&File::open(path).unwrap()).unwrap())
}

/// The vocabularies that the cases have masks for: name and vocabulary.
pub fn of_cases() -> Vec<(String, Arc<Vocab>)> {
    let Some(shared) = testing::shared() else {
        eprintln!("skipped: no shared folder on this machine (set ELIZA_SHARED)");
        return Vec::new();
    };
    let files = [
        ("stories260k", "models/stories260k.gguf"),
        ("llama-bpe", "models/vocab/ggml-vocab-llama-bpe.gguf"),
        ("gemma-4", "models/vocab/ggml-vocab-gemma-4.gguf"),
    ];
    files.map(|(name, file)| (name.to_owned(), vocab(&shared.join(file)))).into()
}

/// A grammar with the usual options.
pub fn grammar(text: &str, vocab: &Arc<Vocab>) -> Arc<Grammar> {
    Grammar::new(Rules::parse(text, "root").unwrap(), vocab, GrammarOptions::default()).unwrap()
}

/// The longest pieces of a vocabulary, control tokens too, as the cases were fed.
pub struct Pieces {
    by_text: HashMap<Vec<u8>, Token>,
    longest: usize,
}

impl Pieces {
    pub fn of(vocab: &Vocab) -> Pieces {
        let mut by_text = HashMap::new();
        for token in (0..vocab.n_tokens() as Token).filter(|&token| !vocab.is_eog(token)) {
            let mut text = Vec::new();
            vocab.piece(token, true, &mut text);
            if !text.is_empty() {
                by_text.entry(text).or_insert(token);
            }
        }
        Pieces { by_text, longest: vocab.max_piece_bytes() }
    }

    /// The longest piece that a text begins with.
    pub fn first(&self, text: &[u8]) -> Option<(Token, usize)> {
        let lengths = (1..=self.longest.min(text.len())).rev();
        lengths.into_iter().find_map(|length| Some((*self.by_text.get(&text[..length])?, length)))
    }

    /// Follows a text by longest pieces; how many bytes were accepted.
    pub fn feed(&self, state: &mut GrammarState, text: &[u8]) -> usize {
        let mut at = 0;
        while let Some((token, length)) = self.first(&text[at..]) {
            if state.accept(token).is_err() {
                break;
            }
            at += length;
        }
        at
    }

    /// Follows a text by tokens of one byte each; how many were accepted.
    pub fn feed_bytes(&self, state: &mut GrammarState, text: &[u8]) -> usize {
        let mut one = |byte: &u8| self.by_text.get(&[*byte][..]).is_some_and(|&token| state.accept(token).is_ok());
        text.iter().take_while(|byte| one(byte)).count()
    }
}

/// Grammars of every construct, hosts' shapes and traps among them.
pub const GRAMMARS: &[&str] = &[
    r#"root ::= "yes" | "no""#,
    r#"root ::= "cat" | "car" | "cart" | "cats""#,
    r#"root ::= [a-z]+ ("-" [0-9]{2,3})?"#,
    r#"root ::= [^"\\\n]*"#,
    r#"root ::= ."#,
    r#"root ::= "<" .* ">""#,
    r#"root ::= ("a" "b"?)+ | "ab"* "c""#,
    r#"root ::= ("a" | "a" | "a")* "b""#,
    r#"root ::= ("a"?){12} "a"{12}"#,
    r#"root ::= "(" root? ")" | "[" root? "]""#,
    r#"root ::= "a" root "b" | "c""#,
    r#"root ::= [a-z]+ [a-z]* "!" | "x" [a-z]* "?""#,
    r#"root ::= "é"+ [日本語]* [^é]"#,
    r#"root ::= [\U0001F600-\U0001F64F] | [а-яё]+ "-" [ぁ-ん]+"#,
    r#"root ::= [0-9]{3} "-" ([0-9]{4} | [a-f]{2,})"#,
    JSON,
    r#"root ::= ws value ws
value ::= "{" ws (pair ("," ws pair)*)? "}" | "[" ws (value ws ("," ws value ws)*)? "]" | string | [0-9]+
pair ::= string ws ":" ws value ws
string ::= "\"" [^"]* "\""
ws ::= [ \t\n]*"#,
    r#"root ::= (expr "=" [0-9]+ "\n")+
expr ::= term ([-+*/] term)*
term ::= [a-z] | [0-9]+ | "(" expr ")""#,
    r#"root ::= "{\"action\":" action ",\"text\":" str ",\"n\":" [0-9]+ "}"
action ::= "\"SEND\"" | "\"SENDALL\"" | "\"STOP\""
str ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\/bfnrt])* "\"""#,
    r#"root ::= row+
row ::= cell ("," cell)* "\n"
cell ::= [^",\n]* | "\"" ([^"] | "\"\"")* "\"""#,
    r#"root ::= "<think>" [^<]* "</think>" "\n"? ("yes" | "no")"#,
    r#"root ::= ("- " [^\r\n]+ "\n"){1,3}"#,
    r#"root ::= o "." o "." o "." o
o ::= "25" [0-5] | "2" [0-4] [0-9] | "1" [0-9]{2} | [1-9]? [0-9]"#,
    r#"root ::= name "(" (arg ("," " "? arg)*)? ")"
name ::= [a-zA-Z_] [a-zA-Z0-9_]*
arg ::= name "=" (str | [0-9]+ | "True" | "False")
str ::= "\"" [^"\n]* "\"""#,
    r#"root ::= "a" ("b" ("c" "d"?)?)?"#,
    r#"root ::= "The quick brown fox jumps over the lazy dog.""#,
    r#"root ::= "a" [] "b" | "a" [z-b]"#,
    r#"root ::= | "x" root"#,
    r#"root ::= "" | ".""#,
    r#"root ::= .{3,5} "!""#,
    r#"root ::= [^a-z]{2} [^\x00-\x7F]+ "end""#,
    r#"root ::= "\t" "\r\n" "\\" "\"" | "\x41\u00e9\U0001F600""#,
    r#"root ::= "a"{0,2001} "b""#,
    r#"root ::= ("ab" | "c"){2} "d"{ 1 , 2 }"#,
    r#"root ::= a-1 2b
a-1 ::= "x" | "y"
2b ::= [0-9]+"#,
    r#"root ::= s s
s ::= "'" [^']* "'" " "?"#,
    r#"root ::= w (" " w){0,20} "."
w ::= [a-zA-Z']+"#,
    r#"root ::= "REPLY" | "IGNORE" | "REPLY_ALL" | "NONE" | "MUTE_ROOM" | "UNMUTE_ROOM""#,
    r#"root ::= x* y
x ::= "a" | "b" x "b"
y ::= "c" y? | "d""#,
    r#"root ::= "{" kv ("," kv)* "}"
kv ::= "\"" [a-z]{1,8} "\":" ("\"" [^"]{0,12} "\"" | "-"? [0-9]{1,6} | "true" | "false")"#,
    r#"root ::= [^\n] [^\n]* ("\n" [^\n]+){0,3}"#,
    r#"root ::= "\u00ff" | [\u0100-\u017f]+ "." | [\u0080-\u07ff] [\u0800-\uffff]"#,
    // Free strings with different things after them.
    r#"root ::= "{\"a\":" string ",\"b\":" string "}" | "[" string ("," string)* "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" ["\\/bfnrt])* "\"""#,
];

/// Compact JSON.
pub const JSON: &str = r#"root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" (pair ("," pair)*)? "}"
pair ::= string ":" value
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" ([^"\\\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\""
number ::= "-"? ("0" | [1-9] [0-9]*) ("." [0-9]+)? ([eE] [-+]? [0-9]+)?"#;
