//! How many passes spans of real names take, with real vocabularies: those of the shared folder, where it is there.

use super::*;
use crate::trie::{Surroundings, Trie, build};
use std::path::{Path, PathBuf};

fn shared() -> Option<PathBuf> {
    let folder = std::env::var_os("ELIZA_SHARED")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared"), PathBuf::from);
    let there = folder.join("tools/peer/actions_30.txt").is_file() && folder.join("models/vocab").is_dir();
    if !there {
        eprintln!("skipped: the shared folder with vocabularies and lists of names is not on this machine");
    }
    there.then_some(folder)
}

#[test]
fn a_span_takes_a_pass_for_each_choice_but_the_first() {
    let Some(shared) = shared() else { return };
    for vocab in ["qwen2", "llama-bpe"] {
        let file = gguf::File::open(shared.join(format!("models/vocab/ggml-vocab-{vocab}.gguf"))).unwrap();
        let words = Arc::new(Vocab::from_gguf(&file).unwrap());
        for count in [30, 200] {
            let names = std::fs::read_to_string(shared.join(format!("tools/peer/actions_{count}.txt"))).unwrap();
            let names: Vec<&str> = names.lines().filter(|line| !line.is_empty()).collect();
            assert_eq!(names.len(), count);
            let around = Surroundings { before: "{\"action\": \"", after: "\"", parse_special: false };
            let payload = build(&words, "", "action", &names, around).unwrap();
            let trie = Trie::parse(payload.json.as_bytes()).unwrap();
            let wanted: Arc<parking_lot::Mutex<Vec<Token>>> = Arc::default();
            let script = wanted.clone();
            let mut fake = Fake::new(Box::new(move |slot, _, row| {
                let tokens = script.lock();
                row[tokens[slot.len() - PROMPT.len()] as usize] = 10.0;
                Ok(())
            }));
            fake.row = vec![0.0; words.n_tokens()];
            let info = ModelInfo {
                n_vocab: words.n_tokens(),
                generates: true,
                context: CONTEXT as u32,
                slots: 1,
                ..ModelInfo::default()
            };
            let session = Session::start(fake, words.clone(), file.clone(), info, Settings::default()).unwrap();
            set(&session, |settings| settings.on_span_end = SpanEnd::Stop);
            session.set_trie(payload.json.as_bytes(), Mode::Greedy).unwrap();
            let (mut tokens, mut choices, mut passes) = (0, 0, 0);
            for leaf in (0..trie.nodes() as u32).filter(|&node| trie.is_leaf(node)) {
                let path = trie.path_to(leaf);
                let mut above = Vec::from([leaf]);
                while trie.parent(above[above.len() - 1]) != above[above.len() - 1] {
                    above.push(trie.parent(above[above.len() - 1]));
                }
                let branching = above.iter().filter(|&&node| trie.children(node).len() > 1).count() as u64;
                wanted.lock().clone_from(&path);
                assert_eq!(generate(&session, -1).tokens, path);
                let usage = session.usage();
                // Without the prompt's; the first choice is made from its kept hidden row.
                let taken = usage.forward_passes - 1;
                assert!(trie.children(above[above.len() - 1]).len() > 1, "the first token is a choice");
                assert_eq!(taken, branching - 1, "{}", trie.leaf(leaf).unwrap());
                assert_eq!((usage.branching_steps, usage.forced_tokens), (branching, path.len() as u64 - branching));
                let allowed: usize = above[1..].iter().map(|&node| trie.children(node).len()).sum();
                assert_eq!((usage.span_tokens, usage.span_candidates), (path.len() as u64, allowed as u64));
                assert_eq!(usage.forward_passes_saved, path.len() as u64 - 1 - taken);
                (tokens, choices, passes) = (tokens + path.len(), choices + branching, passes + taken);
            }
            println!("{vocab}, {count} names: {tokens} tokens, {choices} choices, {passes} passes behind the prompts'");
        }
    }
}
