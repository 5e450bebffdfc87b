//! The source of a template, in the words of the engine that runs it.
//!
//! Templates are written for Python's Jinja2. Where an operator of minijinja differs from Python's (`+` and `%` of
//! texts, `~`, comparisons of unlike things, loops over `None`, unary plus), it becomes a call of a function of
//! [`super::operators`]; `{% generation %}`, a mark for training, becomes `{% if true %}`. Everything else stays as it
//! is, line by line, so that errors name the template's own lines. A tag that is not understood here is left to
//! minijinja, whose error then says what is wrong with it.

/// The functions that operators become.
pub(super) const ADD: &str = "__add";
pub(super) const CONCAT: &str = "__concat";
pub(super) const MODULO: &str = "__modulo";
pub(super) const COMPARE: &str = "__compare";
pub(super) const EACH: &str = "__each";
/// Looks at what a variable is to hold.
pub(super) const KEPT: &str = "__kept";

/// How deep expressions nest, and how many words and signs a tag has; the published templates stay below 20 and 500.
const MAX_DEPTH: usize = 64;
const MAX_TOKENS: usize = 4096;

/// The template as minijinja reads it.
///
/// # Errors
/// The line of a tag that is too long or too deep.
pub(super) fn translate(source: &str) -> Result<String, String> {
    // Python's lexer takes every line end for a line feed.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len() + source.len() / 8);
    let mut rest = source.as_str();
    while let Some(start) = next_tag(rest) {
        let (text, tag) = rest.split_at(start);
        out.push_str(text);
        let Some(length) = tag_length(tag) else {
            rest = tag;
            break;
        };
        let (tag, after) = tag.split_at(length);
        rest = after;
        match rewritten(tag) {
            Ok(Some(new)) => out.push_str(&new),
            Ok(None) => out.push_str(tag),
            Err(TooLong) => {
                let line = out.matches('\n').count() + 1;
                return Err(format!(
                    "a tag has more than {MAX_TOKENS} words or nests more than {MAX_DEPTH} deep (line {line})"
                ));
            }
        }
        if tag.starts_with("{%") && words(tag) == ["raw"] {
            let end = end_of_raw(rest);
            out.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    out.push_str(rest);
    Ok(out)
}

/// A tag that no template needs.
struct TooLong;

/// Where the next tag begins.
fn next_tag(text: &str) -> Option<usize> {
    text.as_bytes().windows(2).position(|two| matches!(two, b"{{" | b"{%" | b"{#"))
}

/// The bytes of the tag that `text` starts with; `None` where it does not end.
fn tag_length(text: &str) -> Option<usize> {
    let close = match text.as_bytes()[1] {
        b'#' => return text[2..].find("#}").map(|at| at + 4),
        b'%' => "%}",
        _ => "}}",
    };
    let mut at = 2;
    let mut open = 0_usize;
    loop {
        let rest = &text[at..];
        if open == 0 && rest.starts_with(close) {
            return Some(at + 2);
        }
        let first = rest.chars().next()?;
        match first {
            '\'' | '"' => at += string_length(rest)?,
            _ => {
                match first {
                    '(' | '[' | '{' => open += 1,
                    ')' | ']' | '}' => open = open.saturating_sub(1),
                    _ => {}
                }
                at += first.len_utf8();
            }
        }
    }
}

/// The bytes of the string literal that `text` starts with.
fn string_length(text: &str) -> Option<usize> {
    let quote = text.chars().next()?;
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return Some(at + 1),
            _ => {}
        }
    }
    None
}

/// Where the tag that ends a raw part begins, or the end of the text.
fn end_of_raw(text: &str) -> usize {
    let mut from = 0;
    while let Some(start) = text[from..].find("{%").map(|at| from + at) {
        let end = text[start..].find("%}").map_or(text.len(), |at| start + at + 2);
        if words(&text[start..end]) == ["endraw"] {
            return start;
        }
        from = start + 2;
    }
    text.len()
}

/// The words between a tag's delimiters.
fn words(tag: &str) -> Vec<&str> {
    let (_, body, _) = parts(tag);
    body.split_whitespace().collect()
}

/// A tag's opening with its sign for white space, what is inside, and its closing with its sign.
fn parts(tag: &str) -> (&str, &str, &str) {
    let sign = |c: Option<&u8>| usize::from(matches!(c, Some(b'-' | b'+')));
    let bytes = tag.as_bytes();
    let open = 2 + sign(bytes.get(2));
    let close = tag.len() - 2;
    let close = close - sign(bytes[open.min(close)..close].last());
    (&tag[..open], &tag[open..close], &tag[close..])
}

/// A tag with its operators replaced; `None` where it is to stay.
fn rewritten(tag: &str) -> Result<Option<String>, TooLong> {
    if tag.starts_with("{#") {
        return Ok(None);
    }
    let (open, body, close) = parts(tag);
    let Some(tokens) = tokens(body) else { return Ok(None) };
    let mut reader = Reader { tokens: &tokens, at: 0, depth: 0, deepest: 0 };
    let new = if tag.starts_with("{{") { reader.tuple() } else { reader.statement() };
    if tokens.len() > MAX_TOKENS || reader.deepest > MAX_DEPTH {
        return Err(TooLong);
    }
    let lines: String = body.chars().filter(|&c| c == '\n').collect();
    Ok(new.filter(|_| reader.at == tokens.len()).map(|new| format!("{open} {new} {lines}{close}")))
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Token<'a> {
    Name(&'a str),
    /// A number or a string, as it is written.
    Literal(&'a str),
    Operator(&'a str),
}

const OPERATORS: [&str; 28] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", ".",
    ",", ":", "|", ";", "!", "@",
];

fn tokens(body: &str) -> Option<Vec<Token<'_>>> {
    let mut tokens = Vec::new();
    let mut rest = body.trim_start();
    while let Some(first) = rest.chars().next() {
        let length;
        if matches!(first, '\'' | '"') {
            length = string_length(rest)?;
            tokens.push(Token::Literal(&rest[..length]));
        } else if first.is_ascii_digit() {
            length = number_length(rest);
            tokens.push(Token::Literal(&rest[..length]));
        } else if first == '_' || first.is_alphabetic() {
            length = rest.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(rest.len());
            tokens.push(Token::Name(&rest[..length]));
        } else {
            let operator = OPERATORS.iter().find(|o| rest.starts_with(**o))?;
            length = operator.len();
            tokens.push(Token::Operator(operator));
        }
        rest = rest[length..].trim_start();
    }
    Some(tokens)
}

/// The bytes of a number: digits with `_`, a fraction, an exponent, or a prefix such as `0x`.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |mut at: usize| {
        while bytes.get(at).is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_') {
            at += 1;
        }
        at
    };
    let mut end = digits(0);
    if bytes.get(end) == Some(&b'.') && bytes.get(end + 1).is_some_and(u8::is_ascii_digit) {
        end = digits(end + 1);
    }
    let signed = matches!(bytes.get(end), Some(b'+' | b'-'));
    if signed && !text.starts_with("0x") && matches!(bytes[end - 1], b'e' | b'E') {
        end = digits(end + 1);
    }
    end
}

/// Reads Jinja's grammar, as Jinja2's parser does, and writes it down again. `None` where it is not followed.
struct Reader<'a> {
    tokens: &'a [Token<'a>],
    at: usize,
    depth: usize,
    deepest: usize,
}

impl<'a> Reader<'a> {
    /// What `part` reads, a level deeper.
    fn deeper(&mut self, part: fn(&mut Self) -> Option<String>) -> Option<String> {
        self.depth += 1;
        self.deepest = self.deepest.max(self.depth);
        if self.depth > MAX_DEPTH {
            return None;
        }
        let read = part(self);
        self.depth -= 1;
        read
    }

    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek()?;
        self.at += 1;
        Some(token)
    }

    fn is(&self, operator: &str) -> bool {
        self.peek() == Some(Token::Operator(operator))
    }

    fn is_name(&self, name: &str) -> bool {
        self.peek() == Some(Token::Name(name))
    }

    fn take(&mut self, operator: &str) -> bool {
        let found = self.is(operator);
        self.at += usize::from(found);
        found
    }

    fn take_name(&mut self, name: &str) -> bool {
        let found = self.is_name(name);
        self.at += usize::from(found);
        found
    }

    fn need(&mut self, operator: &str) -> Option<()> {
        self.take(operator).then_some(())
    }

    fn name(&mut self) -> Option<&'a str> {
        match self.next()? {
            Token::Name(name) => Some(name),
            _ => None,
        }
    }

    fn statement(&mut self) -> Option<String> {
        match self.name()? {
            "generation" => Some("if true".into()),
            "endgeneration" => Some("endif".into()),
            word @ ("if" | "elif") => Some(format!("{word} {}", self.tuple()?)),
            "for" => self.for_loop(),
            "set" => self.assignment(),
            _ => None,
        }
    }

    fn for_loop(&mut self) -> Option<String> {
        let targets = self.targets("in")?;
        let items = self.list_of(Self::or)?;
        let condition = if self.take_name("if") { format!(" if {}", self.expression()?) } else { String::new() };
        let recursive = if self.take_name("recursive") { " recursive" } else { "" };
        Some(format!("for {targets} in {EACH}({items}){condition}{recursive}"))
    }

    /// What is assigned to, up to the word or operator `end`, which is taken.
    fn targets(&mut self, end: &str) -> Option<String> {
        let mut targets = String::new();
        loop {
            match self.next()? {
                Token::Name(word) | Token::Operator(word) if word == end => return Some(targets),
                Token::Name(name) => targets.push_str(name),
                Token::Operator(o @ ("," | "(" | ")" | ".")) => targets.push_str(o),
                _ => return None,
            }
        }
    }

    fn assignment(&mut self) -> Option<String> {
        let targets = self.targets("=")?;
        let inside = targets.contains('.');
        Some(format!("set {targets} = {KEPT}({}, {inside})", self.tuple()?))
    }

    /// Expressions with commas between them, which are a tuple where there is a comma.
    fn tuple(&mut self) -> Option<String> {
        self.list_of(Self::expression)
    }

    fn list_of(&mut self, part: fn(&mut Self) -> Option<String>) -> Option<String> {
        let first = part(self)?;
        if !self.is(",") {
            return Some(first);
        }
        let mut all = first;
        while self.take(",") {
            all.push_str(", ");
            if self.peek().is_none() || self.is(")") {
                break;
            }
            all.push_str(&part(self)?);
        }
        Some(format!("({all})"))
    }

    /// `a if b else c`, and all below.
    fn expression(&mut self) -> Option<String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut value = self.or()?;
        while self.take_name("if") {
            let condition = self.or()?;
            let otherwise =
                if self.take_name("else") { format!(" else {}", self.expression()?) } else { String::new() };
            value = format!("({value} if {condition}{otherwise})");
        }
        self.depth -= 1;
        Some(value)
    }

    fn or(&mut self) -> Option<String> {
        let mut left = self.and()?;
        while self.take_name("or") {
            left = format!("({left} or {})", self.and()?);
        }
        Some(left)
    }

    fn and(&mut self) -> Option<String> {
        let mut left = self.not()?;
        while self.take_name("and") {
            left = format!("({left} and {})", self.not()?);
        }
        Some(left)
    }

    fn not(&mut self) -> Option<String> {
        if !self.take_name("not") {
            return self.comparison();
        }
        Some(format!("(not {})", self.deeper(Self::not)?))
    }

    /// `a < b < c` is `a < b and b < c`. A chain is left to minijinja; a single comparison is Python's.
    fn comparison(&mut self) -> Option<String> {
        let first = self.sum()?;
        let mut rest: Vec<(&str, String)> = Vec::new();
        loop {
            let operator = match self.peek() {
                Some(Token::Operator(o @ ("==" | "!=" | "<" | "<=" | ">" | ">="))) => o,
                Some(Token::Name("in")) => "in",
                Some(Token::Name("not")) if self.tokens.get(self.at + 1) == Some(&Token::Name("in")) => {
                    self.at += 1;
                    "not in"
                }
                _ => break,
            };
            self.at += 1;
            rest.push((operator, self.sum()?));
        }
        match rest.as_slice() {
            [] => Some(first),
            [(operator @ ("<" | "<=" | ">" | ">="), right)] => {
                Some(format!("{COMPARE}('{operator}', {first}, {right})"))
            }
            _ => {
                let chain: String = rest.iter().map(|(operator, right)| format!(" {operator} {right}")).collect();
                Some(format!("({first}{chain})"))
            }
        }
    }

    fn sum(&mut self) -> Option<String> {
        let mut left = self.concatenation()?;
        loop {
            if self.take("+") {
                left = format!("{left}, {}", self.concatenation()?);
                while self.take("+") {
                    left = format!("{left}, {}", self.concatenation()?);
                }
                left = format!("{ADD}({left})");
            } else if self.take("-") {
                left = format!("({left} - {})", self.concatenation()?);
            } else {
                return Some(left);
            }
        }
    }

    fn concatenation(&mut self) -> Option<String> {
        let mut all = self.product()?;
        if !self.is("~") {
            return Some(all);
        }
        while self.take("~") {
            all = format!("{all}, {}", self.product()?);
        }
        Some(format!("{CONCAT}({all})"))
    }

    fn product(&mut self) -> Option<String> {
        let mut left = self.power()?;
        loop {
            let Some(Token::Operator(operator @ ("*" | "/" | "//" | "%"))) = self.peek() else { return Some(left) };
            self.at += 1;
            let right = self.power()?;
            left = match operator {
                "%" => format!("{MODULO}({left}, {right})"),
                _ => format!("({left} {operator} {right})"),
            };
        }
    }

    fn power(&mut self) -> Option<String> {
        let mut left = self.unary(true)?;
        while self.take("**") {
            left = format!("({left} ** {})", self.unary(true)?);
        }
        Some(left)
    }

    fn unary(&mut self, filters: bool) -> Option<String> {
        let sign = if self.take("-") {
            "-"
        } else if self.take("+") {
            "+"
        } else {
            let value = self.primary()?;
            return self.postfix(value, filters);
        };
        let value = self.deeper(|reader| reader.unary(false))?;
        // A plus changes no number, and fails where a minus does.
        let value = if sign == "-" { format!("(-{value})") } else { format!("(-(-{value}))") };
        self.postfix(value, filters)
    }

    fn primary(&mut self) -> Option<String> {
        match self.next()? {
            Token::Name(name) => Some(name.into()),
            Token::Literal(first) => {
                let mut text = first.to_string();
                // 'a' 'b' is 'ab'.
                while let Some(Token::Literal(more)) = self.peek() {
                    text = format!("{text} {more}");
                    self.at += 1;
                }
                Some(text)
            }
            Token::Operator("(") => {
                if self.take(")") {
                    return Some("()".into());
                }
                let inner = self.tuple()?;
                self.need(")")?;
                Some(format!("({inner})"))
            }
            Token::Operator("[") => {
                let items = self.separated("]", Self::expression)?;
                Some(format!("[{items}]"))
            }
            Token::Operator("{") => {
                let items = self.separated("}", |reader| {
                    let key = reader.expression()?;
                    reader.need(":")?;
                    Some(format!("{key}: {}", reader.expression()?))
                })?;
                Some(format!("{{{items}}}"))
            }
            Token::Operator(_) => None,
        }
    }

    /// Parts with commas between them, up to `end`, which is taken.
    fn separated(&mut self, end: &str, part: fn(&mut Self) -> Option<String>) -> Option<String> {
        let mut all = String::new();
        loop {
            if self.take(end) {
                return Some(all);
            }
            if !all.is_empty() {
                self.need(",")?;
                if self.take(end) {
                    return Some(all);
                }
                all.push_str(", ");
            }
            all.push_str(&part(self)?);
        }
    }

    fn arguments(&mut self) -> Option<String> {
        self.separated(")", |reader| {
            if reader.take("**") {
                return Some(format!("**{}", reader.expression()?));
            }
            if reader.take("*") {
                return Some(format!("*{}", reader.expression()?));
            }
            if let (Some(Token::Name(name)), Some(Token::Operator("="))) =
                (reader.peek(), reader.tokens.get(reader.at + 1).copied())
            {
                reader.at += 2;
                return Some(format!("{name}={}", reader.expression()?));
            }
            reader.expression()
        })
    }

    /// Attributes, subscripts, calls; then filters and tests.
    fn postfix(&mut self, mut value: String, filters: bool) -> Option<String> {
        loop {
            if self.take(".") {
                value = match self.next()? {
                    Token::Name(name) => format!("{value}.{name}"),
                    Token::Literal(index) => format!("{value}[{index}]"),
                    Token::Operator(_) => return None,
                };
            } else if self.take("[") {
                value = format!("{value}[{}]", self.subscript()?);
            } else if self.take("(") {
                value = format!("{value}({})", self.arguments()?);
            } else if filters && self.take("|") {
                value = format!("{value}|{}", self.dotted()?);
                if self.take("(") {
                    value = format!("{value}({})", self.arguments()?);
                }
            } else if filters && self.take_name("is") {
                value = self.test(&value)?;
            } else {
                return Some(value);
            }
        }
    }

    fn dotted(&mut self) -> Option<String> {
        let mut name = self.name()?.to_string();
        while self.take(".") {
            name = format!("{name}.{}", self.name()?);
        }
        Some(name)
    }

    fn subscript(&mut self) -> Option<String> {
        let mut text = String::new();
        while !self.take("]") {
            if self.take(":") {
                text.push(':');
            } else {
                text.push_str(&self.expression()?);
            }
        }
        Some(text)
    }

    fn test(&mut self, value: &str) -> Option<String> {
        let not = if self.take_name("not") { "not " } else { "" };
        let mut test = self.dotted()?;
        match self.peek() {
            Some(Token::Operator("(")) => {
                self.at += 1;
                test = format!("{test}({})", self.arguments()?);
            }
            Some(Token::Name("else" | "or" | "and" | "is" | "if" | "in" | "not")) | None => {}
            Some(Token::Name(_) | Token::Literal(_) | Token::Operator("[" | "{")) => {
                let argument = self.primary()?;
                let argument = self.postfix(argument, false)?;
                test = format!("{test}({argument})");
            }
            Some(Token::Operator(_)) => {}
        }
        Some(format!("({value} is {not}{test})"))
    }
}
