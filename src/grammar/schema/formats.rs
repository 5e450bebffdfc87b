//! The formats of strings that are regular expressions.

/// Years that are leap years, 0004 to 9996.
const LEAP: &str = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)";
const YEAR: &str = "([0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)";
const TIME: &str = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
const LLAMA_TIME: &str = "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{3})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])";
const UUID: &str = "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}";
const OCTET: &str = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
/// Of a path, a query or a fragment.
const IN_URI: &str = "([A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})";
/// Of the part of an address before the @ sign.
const ATOM: &str = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+";

/// The pattern of a format; `None` for what is only a note to readers.
pub(super) fn pattern(format: &str) -> Option<String> {
    let body = match format {
        "date" => date(),
        "time" => TIME.into(),
        "date-time" => format!("({})T{TIME}", date()),
        "uuid" => UUID.into(),
        "email" => format!("{ATOM}(\\.{ATOM})*@{}", host("{1,5}")),
        "hostname" => host("{0,5}"),
        "ipv4" => format!("{OCTET}(\\.{OCTET}){{3}}"),
        "ipv6" => ipv6(),
        "uri" => {
            let host = format!("//{}(:[0-9]{{1,5}})?(/{IN_URI}*)*", host("{0,5}"));
            let rest = format!("(\\?({IN_URI}|[/?])*)?(#({IN_URI}|[/?])*)?");
            // With a host, or a path alone as in mailto:.
            format!("[A-Za-z][A-Za-z0-9+.-]*:({host}|{IN_URI}+(/{IN_URI}*)*){rest}")
        }
        "json-pointer" => "(/([^/~]|~[01])*)*".into(),
        "duration" => duration(),
        _ => return None,
    };
    Some(format!("^({body})$"))
}

/// The same of those formats that llama.cpp knows, as it writes them.
pub(super) fn llama_pattern(format: &str) -> Option<String> {
    let date = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])";
    let body = match format {
        "date" => date.into(),
        "time" => LLAMA_TIME.into(),
        "date-time" => format!("{date}T{LLAMA_TIME}"),
        "uuid" | "uuid1" | "uuid2" | "uuid3" | "uuid4" | "uuid5" => UUID.into(),
        _ => return None,
    };
    Some(format!("^({body})$"))
}

/// A name of at most 253 characters, as a host's is: labels of letters and digits with single hyphens between them, the
/// first of up to 31 of them, up to five others of up to 18. So it is plain at each character how it is read.
fn host(others: &str) -> String {
    let label = |more| format!("[A-Za-z0-9](-?[A-Za-z0-9]){{0,{more}}}");
    format!("{}(\\.{}){others}", label(30), label(17))
}

fn date() -> String {
    let long = "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])";
    let short = "(0[469]|11)-(0[1-9]|[12][0-9]|30)";
    let february = "02-(0[1-9]|1[0-9]|2[0-8])";
    format!("{YEAR}-({long}|{short}|{february})|{LEAP}-02-29")
}

fn ipv6() -> String {
    let group = "[0-9a-fA-F]{1,4}";
    let mut ways = vec![format!("{group}(:{group}){{7}}"), format!("::({group}(:{group}){{0,6}})?")];
    for before in 1..=7 {
        let start = format!("{group}(:{group}){{{}}}::", before - 1);
        ways.push(match 7 - before {
            0 => start,
            after => format!("{start}({group}(:{group}){{0,{}}})?", after - 1),
        });
    }
    // The last two groups as an IPv4 address.
    let end = format!("{OCTET}(\\.{OCTET}){{3}}");
    ways.extend([format!("({group}:){{6}}{end}"), format!("::({group}:){{0,5}}{end}")]);
    for before in 1..=5 {
        ways.push(format!("{group}(:{group}){{{}}}::({group}:){{0,{}}}{end}", before - 1, 5 - before));
    }
    ways.join("|")
}

fn duration() -> String {
    let time = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)";
    let date = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)";
    format!("P([0-9]+W|{date}({time})?|{time})")
}
