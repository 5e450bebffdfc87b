//! Filters, tests, functions and methods that minijinja has not, or has otherwise than Python's Jinja2 as
//! `transformers` sets it up (`transformers/utils/chat_template_utils.py`).

use super::{dialect, operators, python};
use minijinja::value::{Kwargs, Rest, Tuple, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

/// The widest indent and padding; more is no text for a model.
const MAX_WIDTH: usize = 1000;

fn fault(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.into())
}

pub(super) fn register(env: &mut Environment<'static>) {
    env.add_function(dialect::ADD, operators::add);
    env.add_function(dialect::CONCAT, operators::concat);
    env.add_function(dialect::MODULO, operators::modulo);
    env.add_function(dialect::COMPARE, operators::compare);
    env.add_function(dialect::EACH, operators::each);
    env.add_function(dialect::KEPT, operators::kept);
    env.add_function("raise_exception", |message: String| -> Result<Value, Error> { Err(fault(message)) });

    env.add_filter("tojson", tojson);
    env.add_filter("indent", indent);
    env.add_filter("string", |value: Value| match value.as_str() {
        Some(_) => Ok(value),
        None => python::text(&value).map(Value::from).map_err(fault),
    });
    env.add_filter("int", int);
    for name in ["e", "escape"] {
        env.add_filter(name, |value: Value| match (value.is_safe(), python::text(&value)) {
            (true, _) => Ok(value.clone()),
            (false, text) => Ok(Value::from_safe_string(operators::escaped(&text.map_err(fault)?))),
        });
    }
    env.add_filter("wordcount", |text: &str| text.split_whitespace().count());

    env.add_test("iterable", |value: &Value| !value.is_none() && value.try_iter().is_ok());
    env.add_test("sequence", |value: &Value| {
        matches!(value.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    env.add_test("callable", |value: &Value| {
        value.as_object().is_some_and(|o| o.repr() == minijinja::value::ObjectRepr::Plain)
    });

    env.set_unknown_method_callback(method);
    env.set_formatter(|out, _, value| Ok(out.write_str(&python::text(value).map_err(fault)?)?));
}

fn tojson(value: Value, options: Kwargs) -> Result<Value, Error> {
    let indent = options.get::<Option<Value>>("indent")?.filter(|v| !v.is_none());
    let indent = indent.map(|indent| indentation(&indent)).transpose()?;
    let separators = options.get::<Option<Value>>("separators")?.filter(|v| !v.is_none());
    let [between_items, after_key] = match separators {
        None => [if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string()],
        Some(pair) => {
            let part = |n| pair.get_item_by_index(n).map(|v| v.to_string());
            [part(0)?, part(1)?]
        }
    };
    let json = python::Json {
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        between_items,
        after_key,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    json.dump(&value).map(Value::from).map_err(fault)
}

/// What a line is indented by: a text, or so many spaces.
fn indentation(width: &Value) -> Result<String, Error> {
    match (width.as_str(), width.as_usize()) {
        (Some(text), _) => Ok(text.into()),
        (None, Some(width)) if width <= MAX_WIDTH => Ok(" ".repeat(width)),
        _ => Err(fault(format!("an indent is a text or a width of at most {MAX_WIDTH}"))),
    }
}

/// `indent(width=4, first=False, blank=False)`: lines are indented, but for the first and those that are empty.
fn indent(text: &str, arguments: Rest<Value>, options: Kwargs) -> Result<String, Error> {
    let argument = |n: usize, name: &str| match arguments.get(n) {
        Some(value) => Ok(Some(value.clone())),
        None => options.get::<Option<Value>>(name),
    };
    let width = argument(0, "width")?;
    let first = argument(1, "first")?.is_some_and(|v| v.is_true());
    let blank = argument(2, "blank")?.is_some_and(|v| v.is_true());
    options.assert_all_used()?;
    let prefix = width.as_ref().map_or_else(|| Ok(" ".repeat(4)), indentation)?;
    let mut out = String::with_capacity(text.len());
    for (n, line) in text.split('\n').enumerate() {
        if n > 0 {
            out.push('\n');
        }
        if if n == 0 { first } else { blank || !line.is_empty() } {
            out.push_str(&prefix);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// `int(default=0, base=10)`: what is no number gives the default.
fn int(value: Value, arguments: Rest<Value>, options: Kwargs) -> Result<Value, Error> {
    let default = match arguments.first() {
        Some(value) => value.clone(),
        None => options.get::<Option<Value>>("default")?.unwrap_or_else(|| Value::from(0)),
    };
    let base: Option<u32> = match arguments.get(1) {
        Some(base) => Some(u32::try_from(base.clone())?),
        None => options.get("base")?,
    };
    options.assert_all_used()?;
    if let Some(text) = value.as_str() {
        let text = text.trim();
        let base = base.filter(|base| (2..=36).contains(base)).unwrap_or(10);
        let number = i128::from_str_radix(text, base).ok();
        let number = number.or_else(|| text.parse::<f64>().ok().filter(|f| f.is_finite()).map(|f| f as i128));
        return Ok(number.map_or(default, Value::from));
    }
    Ok(match value.kind() {
        ValueKind::Bool => Value::from(u8::from(value.is_true())),
        ValueKind::Number if value.is_integer() => value,
        ValueKind::Number => {
            let float = f64::try_from(value).ok().filter(|f| f.is_finite());
            float.map_or(default, |f| Value::from(f as i128))
        }
        _ => default,
    })
}

/// Python's methods of texts, dicts and lists.
fn method(state: &mut State, value: &Value, name: &str, arguments: &[Value]) -> Result<Value, Error> {
    if let Some(text) = value.as_str()
        && let Some(result) = text_method(text, name, arguments)?
    {
        return Ok(result);
    }
    unknown_method_callback(state, value, name, arguments)
}

/// The largest width or precision that a text for `format` asks for: `{:<8}`, `{0:.2f}`. Reads fields as minijinja
/// does: an index ends at its `]` and a fill is any character, so both may hold braces, and no width comes from an
/// argument.
fn widest(text: &str) -> usize {
    let mut widest = 0;
    let mut rest = text;
    while let Some((_, field)) = rest.split_once('{') {
        if let Some(literal) = field.strip_prefix('{') {
            rest = literal;
            continue;
        }
        rest = after_field_name(field);
        let Some(spec) = rest.strip_prefix(':') else { continue };
        let mut after_align = spec.chars();
        after_align.next();
        let has_fill = matches!(after_align.next(), Some('<' | '>' | '^'));
        let after_fill = if has_fill { after_align.as_str() } else { spec };
        let (numbers, after) = after_fill.split_once('}').unwrap_or((after_fill, ""));
        rest = after;
        let numbers = numbers.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
        widest = numbers.map(|digits| digits.parse().unwrap_or(usize::MAX)).fold(widest, usize::max);
    }
    widest
}

/// What follows `name.attribute[index]` in a field of `format`.
fn after_field_name(field: &str) -> &str {
    let mut rest = field;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.');
        match rest.strip_prefix('[').and_then(|index| index.split_once(']')) {
            Some((_, after)) => rest = after,
            None => return rest,
        }
    }
}

/// The methods of texts that minijinja's contributed ones lack, and what its own would not refuse; `None` for any
/// other.
fn text_method(text: &str, name: &str, arguments: &[Value]) -> Result<Option<Value>, Error> {
    let tuple = |parts: [&str; 3]| Value::from(Tuple::from(parts.map(Value::from)));
    Ok(Some(match name {
        "startswith" | "endswith" if arguments.len() > 1 => {
            let (what, start, end): (Value, i64, Option<i64>) = from_args(arguments)?;
            let part = slice(text, start, end);
            let has = |one: &Value| {
                one.as_str()
                    .is_some_and(|one| if name == "startswith" { part.starts_with(one) } else { part.ends_with(one) })
            };
            Value::from(if what.as_str().is_some() { has(&what) } else { what.try_iter()?.any(|one| has(&one)) })
        }
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_prefix(prefix).unwrap_or(text))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(arguments)?;
            Value::from(text.strip_suffix(suffix).unwrap_or(text))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            let parts = text.split_once(separator);
            parts.map_or_else(|| tuple([text, "", ""]), |(before, after)| tuple([before, separator, after]))
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(arguments)?;
            let parts = text.rsplit_once(separator);
            parts.map_or_else(|| tuple(["", "", text]), |(before, after)| tuple([before, separator, after]))
        }
        "rsplit" => {
            let (separator, most): (Option<&str>, Option<i64>) = from_args(arguments)?;
            let most = most.and_then(|n| usize::try_from(n).ok()).map_or(usize::MAX, |n| n.saturating_add(1));
            let mut parts: Vec<&str> = match separator {
                Some("") => return Err(fault("empty separator")),
                Some(separator) => text.rsplitn(most, separator).collect(),
                None => rsplit_white_space(text, most),
            };
            parts.reverse();
            Value::from_iter(parts)
        }
        "index" | "rindex" => {
            let (what,): (&str,) = from_args(arguments)?;
            let at = if name == "index" { text.find(what) } else { text.rfind(what) };
            Value::from(text[..at.ok_or_else(|| fault("substring not found"))?].chars().count())
        }
        "swapcase" => {
            let () = from_args(arguments)?;
            let swap =
                |c: char| if c.is_uppercase() { c.to_lowercase().to_string() } else { c.to_uppercase().to_string() };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "format" if widest(text) > MAX_WIDTH => {
            return Err(fault(format!("{name} takes a width or precision of at most {MAX_WIDTH}")));
        }
        "zfill" | "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<char>) = from_args(arguments)?;
            if width > MAX_WIDTH {
                return Err(fault(format!("{name} takes a width of at most {MAX_WIDTH}")));
            }
            let missing = width.saturating_sub(text.chars().count());
            let fill = fill.unwrap_or(if name == "zfill" { '0' } else { ' ' });
            let fill = |n: usize| fill.to_string().repeat(n);
            Value::from(match name {
                "ljust" => format!("{text}{}", fill(missing)),
                "center" => {
                    let left = missing / 2 + (missing & width & 1);
                    format!("{}{text}{}", fill(left), fill(missing - left))
                }
                "zfill" if text.starts_with(['+', '-']) => format!("{}{}{}", &text[..1], fill(missing), &text[1..]),
                _ => format!("{}{text}", fill(missing)),
            })
        }
        _ => return Ok(None),
    }))
}

/// `text[start:end]` in code points, as Python cuts.
fn slice(text: &str, start: i64, end: Option<i64>) -> String {
    let count = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let place = |n: i64| usize::try_from(if n < 0 { (count + n).max(0) } else { n.min(count) }).unwrap_or(0);
    let (start, end) = (place(start), place(end.unwrap_or(count)));
    text.chars().skip(start).take(end.saturating_sub(start)).collect()
}

/// The parts between white space, from the right, at most `most` of them.
fn rsplit_white_space(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end();
    while !rest.is_empty() {
        match rest.rfind(char::is_whitespace) {
            Some(at) if parts.len() + 1 < most => {
                let width = rest[at..].chars().next().map_or(1, char::len_utf8);
                parts.push(&rest[at + width..]);
                rest = rest[..at].trim_end();
            }
            _ => {
                parts.push(rest);
                break;
            }
        }
    }
    parts
}
