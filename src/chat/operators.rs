//! Python's operators, where minijinja's differ; [`super::dialect`] writes their calls.

use super::python;
use minijinja::value::{Rest, Tuple, ValueKind};
use minijinja::{Error, ErrorKind, State, Value};

fn fault(problem: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem.into())
}

fn unlike(operator: &str, left: &Value, right: &Value) -> Error {
    fault(format!("unsupported operand types for {operator}: {} and {}", left.kind(), right.kind()))
}

/// Two numbers, where a bool is an integer too.
enum Numbers {
    Integers(i128, i128),
    Floats(f64, f64),
}

fn numbers(left: &Value, right: &Value) -> Option<Numbers> {
    let integer = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(i128::from(value.is_true())),
        _ if value.is_integer() => i128::try_from(value.clone()).ok(),
        _ => None,
    };
    let float = |value: &Value| match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        _ => None,
    };
    match (integer(left), integer(right)) {
        (Some(a), Some(b)) => Some(Numbers::Integers(a, b)),
        _ => Some(Numbers::Floats(float(left)?, float(right)?)),
    }
}

/// `a + b + …`.
pub(super) fn add(values: Rest<Value>) -> Result<Value, Error> {
    let mut values = values.0.into_iter();
    let first = values.next().unwrap_or_default();
    values.try_fold(first, |left, right| add_two(&left, &right))
}

fn add_two(left: &Value, right: &Value) -> Result<Value, Error> {
    if let (Some(a), Some(b)) = (left.as_str(), right.as_str()) {
        // A text that was marked as safe escapes what it is joined with.
        return Ok(match (left.is_safe(), right.is_safe()) {
            (false, false) => Value::from([a, b].concat()),
            (true, true) => Value::from_safe_string([a, b].concat()),
            (true, false) => Value::from_safe_string(format!("{a}{}", escaped(b))),
            (false, true) => Value::from_safe_string(format!("{}{b}", escaped(a))),
        });
    }
    if left.kind() == ValueKind::Seq && right.kind() == ValueKind::Seq && left.is_tuple() == right.is_tuple() {
        let items: Vec<Value> = left.try_iter()?.chain(right.try_iter()?).collect();
        return Ok(if left.is_tuple() { Tuple::from(items).into() } else { items.into() });
    }
    match numbers(left, right) {
        Some(Numbers::Integers(a, b)) => a.checked_add(b).map(Value::from).ok_or_else(|| unlike("+", left, right)),
        Some(Numbers::Floats(a, b)) => Ok(Value::from(a + b)),
        None => Err(unlike("+", left, right)),
    }
}

/// A text as HTML, in the way of Python's markupsafe.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    out
}

/// `a ~ b ~ …`: the texts of the values, one after the other.
pub(super) fn concat(values: Rest<Value>) -> Result<Value, Error> {
    let mut all = String::new();
    for value in values.0 {
        all.push_str(&python::text(&value).map_err(fault)?);
    }
    Ok(Value::from(all))
}

/// `a % b`: a remainder with the sign of `b`, or a text whose `%s` and relatives are filled in.
pub(super) fn modulo(state: &mut State, left: Value, right: Value) -> Result<Value, Error> {
    if left.as_str().is_some() {
        let mut arguments = vec![left];
        if right.is_tuple() {
            arguments.extend(right.try_iter()?);
        } else {
            arguments.push(right);
        }
        return state.apply_filter("format", &arguments);
    }
    match numbers(&left, &right) {
        Some(Numbers::Integers(_, 0)) => Err(fault("modulo by zero")),
        Some(Numbers::Integers(a, b)) => {
            let rest = a.wrapping_rem(b);
            Ok(Value::from(if rest != 0 && (rest < 0) != (b < 0) { rest + b } else { rest }))
        }
        Some(Numbers::Floats(_, 0.0)) => Err(fault("modulo by zero")),
        Some(Numbers::Floats(a, b)) => {
            let rest = a % b;
            Ok(Value::from(if rest != 0.0 && (rest < 0.0) != (b < 0.0) { rest + b } else { rest }))
        }
        None => Err(unlike("%", &left, &right)),
    }
}

/// `a < b`, `<=`, `>`, `>=`: numbers with numbers, and otherwise like with like.
pub(super) fn compare(operator: &str, left: Value, right: Value) -> Result<bool, Error> {
    let comparable = |kind: ValueKind| matches!(kind, ValueKind::String | ValueKind::Seq);
    if numbers(&left, &right).is_none() && !(left.kind() == right.kind() && comparable(left.kind())) {
        return Err(unlike(operator, &left, &right));
    }
    Ok(match operator {
        "<" => left < right,
        "<=" => left <= right,
        ">" => left > right,
        _ => left >= right,
    })
}

/// How deep values nest that variables hold, and how many values are in one.
const MAX_DEPTH: usize = 128;
const MAX_VALUES: usize = 1 << 20;
/// Values that are looked at for one unit of fuel.
const VALUES_A_FUEL: u64 = 16;

/// What a variable is to hold: a template could nest values as often as it assigns them, until the stack that frees
/// them ends, and a namespace could hold itself. `inside` says that the variable is a namespace's.
pub(super) fn kept(state: &State, value: Value, inside: bool) -> Result<Value, Error> {
    let mut values = 0;
    look(&value, usize::from(inside), &mut values).map_err(fault)?;
    state.consume_fuel(values as u64 / VALUES_A_FUEL)?;
    Ok(value)
}

fn look(value: &Value, depth: usize, values: &mut usize) -> Result<(), String> {
    *values += 1;
    if depth > MAX_DEPTH || *values > MAX_VALUES {
        return Err(format!("a value nests more than {MAX_DEPTH} deep or holds more than {MAX_VALUES} others"));
    }
    if depth > 0 && python::is_namespace(value) {
        return Err("a namespace inside another value".into());
    }
    match value.kind() {
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter().into_iter().flatten().try_for_each(|item| look(&item, depth + 1, values))
        }
        ValueKind::Map => value.try_iter().into_iter().flatten().try_for_each(|key| {
            look(&key, depth + 1, values)?;
            look(&value.get_item(&key).unwrap_or_default(), depth + 1, values)
        }),
        _ => Ok(()),
    }
}

/// What a loop goes through.
pub(super) fn each(value: Value) -> Result<Value, Error> {
    if value.is_none() {
        return Err(fault("None is not iterable"));
    }
    Ok(value)
}
