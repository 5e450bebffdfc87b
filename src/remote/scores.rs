//! The probabilities of a trie's tokens after a prompt, as each kind of server tells them.
//!
//! Every edge of a trie is on the path to a leaf without children, so these paths are what is asked for.

use super::dialect::{Scores, set};
use super::server::Server;
use super::trie_grammar;
use crate::trie::{Node, Trie};
use crate::{Error, Result, Token};
use serde_json::{Value, json};
use std::ops::Range;

/// The natural logarithms of the probabilities of the tokens that lead to nodes, each among the whole vocabulary, for
/// all nodes of a descriptor; indexed by the node less the first one.
///
/// # Errors
/// [`Error::Unsupported`] for a kind that tells none; [`Error::Remote`]; [`Error::Cancelled`].
pub fn logprobs(server: &Server, prompt: &[Token], trie: &Trie, nodes: Range<Node>) -> Result<Vec<f64>> {
    let root = nodes.start;
    let paths: Vec<(Node, Vec<Token>)> =
        nodes.clone().filter(|&node| trie.children(node).is_empty()).map(|node| (node, trie.path_to(node))).collect();
    let told = match server.dialect().scores {
        Scores::PromptLogprobs => of_prompts(server, prompt, &paths)?,
        Scores::InputLogprobs => of_inputs(server, prompt, &paths)?,
        Scores::Forced => paths.iter().map(|(_, path)| forced(server, prompt, path)).collect::<Result<_>>()?,
        Scores::None => {
            let problem = format!("{}: this kind of server scores no names", server.facts().address);
            return Err(Error::Unsupported(problem));
        }
    };
    let mut edges = vec![0.0; (nodes.end - root) as usize];
    for ((leaf, path), told) in paths.iter().zip(&told) {
        let mut node = *leaf;
        for logprob in told.iter().rev() {
            edges[(node - root) as usize] = *logprob;
            node = trie.parent(node);
        }
        if told.len() != path.len() || told.iter().any(|logprob| logprob.is_nan()) {
            return Err(server.problem(format!("{} tokens of a name, and not a probability of each", path.len())));
        }
    }
    Ok(edges)
}

/// All prompts with a name each.
fn with_names(prompt: &[Token], paths: &[(Node, Vec<Token>)]) -> Vec<Vec<Token>> {
    paths.iter().map(|(_, path)| [prompt, path].concat()).collect()
}

fn of_prompts(server: &Server, prompt: &[Token], paths: &[(Node, Vec<Token>)]) -> Result<Vec<Vec<f64>>> {
    let mut body = server.body();
    body["prompt"] = json!(with_names(prompt, paths));
    body["max_tokens"] = json!(1);
    body["temperature"] = json!(0.0);
    body["prompt_logprobs"] = json!(0);
    let answer = server.client().post(server.dialect().generate, &body)?;
    let mut told = vec![Vec::new(); paths.len()];
    let choices = answer.get("choices").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    for (place, choice) in choices.iter().enumerate() {
        let index = choice.get("index").and_then(Value::as_u64).map_or(place, |index| index as usize);
        let (Some(out), Some((_, path))) = (told.get_mut(index), paths.get(index)) else { continue };
        let entries = choice.get("prompt_logprobs").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let own = entries.iter().skip(prompt.len()).zip(path);
        out.extend(own.filter_map(|(entry, token)| entry.get(token.to_string())?.get("logprob")?.as_f64()));
    }
    Ok(told)
}

fn of_inputs(server: &Server, prompt: &[Token], paths: &[(Node, Vec<Token>)]) -> Result<Vec<Vec<f64>>> {
    let mut body = server.body();
    set(&mut body, server.dialect().prompt, json!(with_names(prompt, paths)));
    set(&mut body, server.dialect().max_tokens, json!(0));
    set(&mut body, "/sampling_params/temperature", json!(0.0));
    body["return_logprob"] = json!(true);
    // The entry at the first place has no probability.
    body["logprob_start_len"] = json!(prompt.len().saturating_sub(1));
    let answer = server.client().post(server.dialect().generate, &body)?;
    let answers = answer.as_array().map_or(std::slice::from_ref(&answer), Vec::as_slice);
    let of_path = |(answer, (_, path)): (&Value, &(Node, Vec<Token>))| {
        let entries = answer.pointer("/meta_info/input_token_logprobs").and_then(Value::as_array);
        let entries = entries.map_or(&[][..], Vec::as_slice);
        let own = entries.iter().skip(entries.len().saturating_sub(path.len())).zip(path);
        own.filter_map(|(entry, &token)| {
            let same = entry.get(1)?.as_i64() == Some(token.into());
            entry.get(0)?.as_f64().filter(|_| same)
        })
        .collect()
    };
    Ok(answers.iter().zip(paths).map(of_path).collect())
}

fn forced(server: &Server, prompt: &[Token], path: &[Token]) -> Result<Vec<f64>> {
    let Some((field, spell)) = server.dialect().grammar else { return Ok(Vec::new()) };
    let mut body = server.body();
    set(&mut body, server.dialect().prompt, json!(prompt));
    set(&mut body, server.dialect().max_tokens, json!(path.len()));
    set(&mut body, field, json!(trie_grammar::run(path, spell)));
    for (name, value) in [("temperature", json!(0.0)), ("n_probs", json!(1)), ("cache_prompt", json!(true))] {
        body[name] = value;
    }
    let answer = server.client().post(server.dialect().generate, &body)?;
    let told = answer.get("completion_probabilities").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let own =
        told.iter().zip(path).filter(|(one, token)| one.get("id").and_then(Value::as_i64) == Some((**token).into()));
    Ok(own.filter_map(|(one, _)| one.get("logprob")?.as_f64()).collect())
}
