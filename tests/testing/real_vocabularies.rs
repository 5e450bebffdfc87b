//! The vocabularies in the shared folder, and the names of all pre-tokenizers.

use elizainference::gguf::File;
use elizainference::vocab::Vocab;
use std::path::{Path, PathBuf};

/// Every value of `tokenizer.ggml.pre` that is done.
pub const PRE_TOKENIZERS: &[&str] = &[
    "default",
    "llama3",
    "llama-v3",
    "llama-bpe",
    "falcon3",
    "falcon-h1",
    "pixtral",
    "midm-2.0",
    "lfm2",
    "jina-v5-nano",
    "dbrx",
    "smaug-bpe",
    "chatglm-bpe",
    "glm4",
    "glm5",
    "jais-2",
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
    "trillion",
    "granite-docling",
    "starcoder",
    "refact",
    "codeshell",
    "exaone",
    "minerva-7b",
    "mellum2",
    "command-r",
    "smollm",
    "qwen2",
    "deepseek-r1-qwen",
    "kormo",
    "f2llmv2",
    "hunyuan",
    "solar-open",
    "grok-2",
    "stablelm2",
    "megrez",
    "qwen35",
    "laguna",
    "ufakzeka",
    "seed-coder",
    "bailingmoe",
    "bailingmoe2",
    "llada-moe",
    "minicpm5",
    "gpt-4o",
    "llama4",
    "kanana2",
    "talkie",
    "minimax-m2",
    "granite-embed-multi-97m",
    "tiny_aya",
    "cohere2moe",
    "tekken",
    "deepseek-v3",
    "hunyuan-dense",
    "joyai-llm",
    "hy_v4",
    "spark2_5",
    "afmoe",
    "deepseek-llm",
    "deepseek-coder",
    "falcon",
    "bloom",
    "gpt3-finnish",
    "poro-chat",
    "viking",
    "youtu",
    "chameleon",
    "exaone-moe",
    "superbpe",
    "kimi-k2",
    "gemma4",
    "granite-embed-multi-311m",
    "sarvam-moe",
];

/// The folder of extra models, if it holds vocabularies.
pub fn folder() -> Option<PathBuf> {
    let found = super::shared().filter(|folder| folder.join("models/vocab").is_dir());
    if found.is_none() {
        eprintln!("skipped: no vocabularies on this machine (set ELIZA_SHARED to the folder that holds models/vocab)");
    }
    found
}

/// All vocabularies in the shared folder that this library does: name, vocabulary, path.
pub fn all(shared: &Path) -> Vec<(String, Vocab, PathBuf)> {
    let in_folder = |folder: PathBuf| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<PathBuf> =
        in_folder(shared.join("models/vocab")).chain(in_folder(shared.join("models"))).collect();
    paths.retain(|path| path.extension().is_some_and(|e| e == "gguf"));
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        match Vocab::from_gguf(&File::open(&path).unwrap()) {
            Ok(vocab) => found.push((name, vocab, path)),
            Err(elizainference::Error::Unsupported(what)) => eprintln!("skipped: {name}: {what}"),
            Err(error) => panic!("{name}: {error}"),
        }
    }
    found
}
