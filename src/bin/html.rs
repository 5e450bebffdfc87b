//! `bench --html`: what a bench measured as one page that needs nothing beside it.

use crate::output::{count, size};
use serde_json::Value;
use std::fmt::Write;

const STYLE: &str = include_str!("html.css");

/// The page of a bench's JSON: `speed` as `bench --json` prints it, `memory` as `plan --json` does, and `choices`, a
/// list of what `bench --mode` writes.
pub fn page(report: &Value) -> String {
    let (speed, memory) = (&report["speed"], &report["memory"]);
    let choices: Vec<&Value> = report["choices"].as_array().into_iter().flatten().collect();
    let mut body = String::new();
    let model = text(&speed["model"]);
    let name = model.rsplit(['/', '\\']).next().unwrap_or_default();
    let threads = speed["threads"].as_u64().unwrap_or(0);
    let place = format!("{name} on {}, {}", text(&speed["device"]), counted(threads, "thread"));
    put(
        &mut body,
        format_args!("<h1>libelizainference {}</h1>\n<p>{}</p>\n", env!("CARGO_PKG_VERSION"), escaped(&place)),
    );

    let spans = choices.first().map_or(0, |choice| whole(choice, "spans"));
    section(
        &mut body,
        "One choice among names",
        &format!(
            "median of {}, from the prompt's end to the last token; unconstrained: as many tokens as \
             the longest name has",
            counted(spans, "prompt")
        ),
    );
    let times = choices.iter().map(|choice| {
        let ms = number(choice, "ms_per_span");
        Bar { label: way(choice), parts: vec![ms], value: format!("{ms:.2} ms") }
    });
    bars(&mut body, &times.collect::<Vec<_>>());

    section(
        &mut body,
        "Forward passes",
        "behind the prompts of all choices; hatched: what one pass for each token would add",
    );
    let passes = choices.iter().map(|choice| {
        // Each prompt is a pass of its own.
        let made = whole(choice, "forward_passes_total").saturating_sub(spans);
        let saved = whole(choice, "forward_passes_saved");
        let value = if saved > 0 { format!("{made}, {saved} saved") } else { made.to_string() };
        Bar { label: way(choice), parts: vec![made as f64, saved as f64], value }
    });
    bars(&mut body, &passes.collect::<Vec<_>>());

    section(&mut body, "Tokens per second", "");
    let rate = |label: &str, per_second: f64| Bar {
        label: label.into(),
        parts: vec![per_second],
        value: count(per_second.round() as u64),
    };
    let mut rates = Vec::new();
    if let Some(prompt) = speed["prompt_tok_s"].as_f64() {
        rates.push(rate(&format!("reading a prompt of {}", whole(speed, "pp")), prompt));
    }
    if let Some(decode) = speed["decode_tok_s"].as_f64() {
        rates.push(rate("writing", decode));
    }
    rates.extend(
        choices.iter().map(|choice| rate(&format!("choosing: {}", way(choice)), number(choice, "tokens_per_second"))),
    );
    bars(&mut body, &rates);

    let context = whole(memory, "context");
    section(&mut body, "Memory", &format!("with a context of {context} tokens"));
    let mut parts = Vec::new();
    for device in memory["devices"].as_array().into_iter().flatten() {
        for (part, bytes) in device["bytes"].as_object().into_iter().flatten() {
            let bytes = bytes.as_u64().unwrap_or(0);
            if bytes > 0 {
                parts.push(Bar { label: part.replace('_', " "), parts: vec![bytes as f64], value: size(bytes) });
            }
        }
    }
    if let Some(peak) = speed["peak_rss_bytes"].as_u64() {
        parts.push(Bar { label: "the whole process".into(), parts: vec![peak as f64], value: size(peak) });
    }
    bars(&mut body, &parts);

    // `</` would end the element.
    let data = report.to_string().replace("</", "<\\/");
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{}</title>\n\
         <style>\n{STYLE}</style>\n<main>\n{body}</main>\n\
         <script type=\"application/json\" id=\"report\">{data}</script>\n</html>\n",
        escaped(name)
    )
}

/// What a bar shows: parts side by side, the second one hatched.
struct Bar {
    label: String,
    parts: Vec<f64>,
    value: String,
}

/// All bars of a group have one scale.
fn bars(out: &mut String, bars: &[Bar]) {
    let longest = bars.iter().map(|bar| bar.parts.iter().sum()).fold(f64::MIN_POSITIVE, f64::max);
    out.push_str("<dl>\n");
    for Bar { label, parts, value } in bars {
        put(out, format_args!("<dt>{}</dt><dd><span class=\"bar\">", escaped(label)));
        for part in parts.iter().filter(|part| **part > 0.0) {
            put(out, format_args!("<i style=\"width:{:.2}%\"></i>", 100.0 * part / longest));
        }
        put(out, format_args!("</span><b>{}</b></dd>\n", escaped(value)));
    }
    out.push_str("</dl>\n");
}

fn section(out: &mut String, title: &str, note: &str) {
    put(out, format_args!("<h2>{}</h2>\n", escaped(title)));
    if !note.is_empty() {
        put(out, format_args!("<p>{}</p>\n", escaped(note)));
    }
}

/// How a report chose, in words.
fn way(choice: &Value) -> String {
    match choice["mode"].as_str() {
        Some("strict-trie-ffi") => "token trie".into(),
        Some("strict-mask") => "mask".into(),
        Some(other) => other.replace('-', " "),
        None => String::new(),
    }
}

fn counted(n: u64, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn number(value: &Value, key: &str) -> f64 {
    value[key].as_f64().unwrap_or(0.0)
}

fn whole(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or(0)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn put(out: &mut String, text: std::fmt::Arguments<'_>) {
    // A String takes everything.
    let _ = out.write_fmt(text);
}
