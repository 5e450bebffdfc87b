//! Templates that were made to harm: each ends in an error, and soon.

use super::print;
use std::time::{Duration, Instant};

#[test]
fn a_template_that_takes_too_much_ends_in_an_error() {
    let nested_lists = "{% set ns = namespace(x=[]) %}{% for i in range(90000) %}{% set ns.x = [ns.x] %}{% endfor %}";
    let doubled_lists =
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}";
    let sources = [
        "{% for i in range(10**9) %}{% endfor %}".to_string(),
        "{% for i in range(99999) %}{% for j in range(99999) %}x{% endfor %}{% endfor %}".into(),
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".into(),
        "{% macro f(n) %}{{ f(n + 1) }}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}".into(),
        "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}".into(),
        "{{ 'x' * 10**8 * 10 }}".into(),
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}"
            .into(),
        "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}".into(),
        "{% set ns = namespace(l=[1]) %}{% for i in range(40) %}{% set ns.l = ns.l + ns.l %}{% endfor %}".into(),
        "{{ '%1000000000d' % 1 }}".into(),
        "{{ '{:1000000000}'.format('x') }}".into(),
        "{{ 'x' | indent(10**9, true) }}".into(),
        "{{ [1] | tojson(indent=10**9) }}".into(),
        "{{ 'x'.center(10**9) }}".into(),
        "{{ [1] * 10**9 }}".into(),
        "{{ ('x' * 10**6) | replace('x', 'y' * 10**6) }}".into(),
        "{{ ('x,' * 10**6).split(',') | join('y' * 10**6) }}".into(),
        format!("{doubled_lists}{{{{ ns.x }}}}"),
        format!("{doubled_lists}{{{{ ns.x | tojson }}}}"),
        format!("{nested_lists}{{{{ ns.x }}}}"),
        format!("{nested_lists}{{{{ ns.x | tojson }}}}"),
        format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
        format!("{{{{ {}{} }}}}", "[".repeat(100_000), "]".repeat(100_000)),
        format!("{{{{ x{} }}}}", "[x".repeat(100_000)),
        "{% if true %}".repeat(100_000),
        "{% for i in [1] %}".repeat(50_000),
        "x".repeat((1 << 20) + 1),
        format!("{{% set x = [1] %}}{}", "{% set x=[x] %}".repeat(60_000)),
        format!("{{{{ [1]{} }}}}", "|batch(1)|list".repeat(60_000)),
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns == ns }}".into(),
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns }}".into(),
        "{{ 2 ** (10**9) }}".into(),
        "{{ 1 << 5 }}".into(),
        "{% include 'a' %}".into(),
    ];
    for source in sources {
        let shown: String = source.chars().take(80).collect();
        let start = Instant::now();
        let result = print(&source);
        let took = start.elapsed();
        let text = result.as_ref().map(|text| text.len());
        assert!(result.is_err(), "{shown}: {text:?} bytes");
        // A bound on work, ten times what it takes in a build that is not optimised; no measurement.
        assert!(took < Duration::from_secs(10), "{shown}: {took:?}");
    }
}

/// Nothing of the width is made before.
#[test]
fn a_width_beyond_all_use_is_refused_by_name() {
    let beyond = [
        "{:1000000000}",
        "{0:>99999999999999999999}",
        "{{{:.1001f}}}",
        "{a:8} {b:{{:1001}",
        "{:}<1000000000}",
        "{:{<1000000000}",
        "{c[}]:1000000000}",
        "{c[{].d[:8}]:>+#1000000000,.2f}",
    ];
    for format in beyond {
        let error = print(&format!("{{{{ '{format}'.format(1, 2, a=1, b=2, c={{}}) }}}}")).unwrap_err();
        assert!(error.contains("format takes a width or precision of at most 1000"), "{format}: {error}");
    }
    let within = [
        ("{:>5}", "    x"),
        ("{:}>5}", "}}}}x"),
        ("{:{^5} 1001", "{{x{{ 1001"),
        ("{{:1001}} {}", "{:1001} x"),
        ("{:1000}", &format!("x{}", " ".repeat(999))),
    ];
    for (format, printed) in within {
        assert_eq!(print(&format!("{{{{ '{format}'.format('x') }}}}")).unwrap(), printed);
    }
}

#[test]
fn deep_inputs_do_no_harm() {
    let deep = format!("{}1{}", "[".repeat(120), "]".repeat(120));
    let inputs = format!(r#"{{"messages": [], "v": {deep}}}"#);
    assert_eq!(super::render("{{ v | tojson }}", &inputs).unwrap(), deep);
    let deeper = format!(r#"{{"messages": [], "v": {}1{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    assert!(super::render("{{ v }}", &deeper).unwrap_err().contains("recursion limit"));
}
