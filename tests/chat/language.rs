//! The language of templates where the shared folder is not there, and what its files do not have.
//! The results are CPython 3.11's with jinja2 3.1.6.

use super::{print, render};

#[test]
fn operators_are_pythons() {
    for (source, wanted) in [
        ("{{ 'a' + 'b' ~ 1 + 'c' if true }}", Ok("ab1c")),
        ("{{ 'a' + 1 }}", Err("unsupported operand")),
        ("{{ 'a' + ('b' ~ 1) + 'c' }}", Ok("ab1c")),
        ("{{ 1 + 2 * 3 - 4 }} {{ 7 % 3 + 1 }} {{ -7 % 3 }} {{ 7.5 % -2 }}", Ok("3 2 2 -0.5")),
        ("{{ [1] + [2] + [3] }} {{ (1,) + (2,) }}", Ok("[1, 2, 3] (1, 2)")),
        ("{{ true + true }} {{ 1 + 1.5 }}", Ok("2 2.5")),
        ("{{ [1] + (2,) }}", Err("unsupported operand")),
        ("{{ 'x=%d %s' % (1, 'y') }}", Ok("x=1 y")),
        ("{{ 1 % 0 }}", Err("modulo by zero")),
        ("{{ 1 < 2 < 3 }} {{ 'a' <= 'a' }} {{ [1] < [2] }} {{ 1 > 0.5 }}", Ok("True True True True")),
        ("{{ none < 1 }}", Err("unsupported operand")),
        ("{{ not 1 in [2] }} {{ 1 not in [2] }} {{ not false and true }}", Ok("True True True")),
        ("{{ +3 - -2 }} {{ 2 ** 3 ** 2 }}", Ok("5 64")),
        ("{% for a, b in [(1, 2)] %}{{ a }}{{ b }}{% endfor %}", Ok("12")),
        ("{% for x in [3, 4] if x > 3 %}{{ loop.length }}{{ x }}{% endfor %}", Ok("14")),
        ("{% for x in 'ab' if true else 'c' %}{{ x }}{% endfor %}", Err("")),
        ("{% set a, b = 1, 'x' %}{{ a }}{{ b }}", Ok("1x")),
        ("{{ ('a' if false) is defined }}", Ok("False")),
        ("{{ {'a': 1, 'b': [2, {'c': 3}]}['b'][1].c }}", Ok("3")),
        ("{{ 'a'.join(['x', 'y']) | upper | length }}", Ok("3")),
        ("{{ '}}' ~ \"%}\" ~ '{{' }}", Ok("}}%}{{")),
        ("{{ 1 if 2 is divisibleby 2 else 0 }} {{ 3 is not even }}", Ok("1 True")),
        ("{% raw %}{{ a + b }}{% generation %}{% endraw %}!", Ok("{{ a + b }}{% generation %}!")),
        ("{# {{ 1 + none }} #}ok", Ok("ok")),
        (
            "{{ 'Ünï'.title() }} {{ ' a b '.rsplit(none, 1) }} {{ 'a.b.c'.rpartition('.') }}",
            Ok("Ünï [' a', 'b'] ('a.b', '.', 'c')"),
        ),
        (
            "{{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ 'ab'.center(5, '*') }} {{ 'a'.ljust(3) }}|",
            Ok("007 -007 **ab* a  |"),
        ),
        ("a\r\n{% if true %}\r\nb\r\n{% endif %}\rc", Ok("a\nb\nc")),
    ] {
        match (print(source), wanted) {
            (Ok(got), Ok(wanted)) => assert_eq!(got, wanted, "{source}"),
            (Err(got), Err(wanted)) => assert!(got.contains(wanted), "{source}: {got}"),
            (got, _) => panic!("{source}: {got:?} instead of {wanted:?}"),
        }
    }
}

#[test]
fn values_are_written_as_python_writes_them() {
    let inputs =
        r#"{"messages": [], "v": {"f": [1e22, 1e-5, 0.0001, 123456789012345680.0, -0.0], "s": "a'b\n", "n": null}}"#;
    let wanted = "{'f': [1e+22, 1e-05, 0.0001, 1.2345678901234568e+17, -0.0], 's': \"a'b\\n\", 'n': None}";
    assert_eq!(render("{{ v }}", inputs).unwrap(), wanted);
    let wanted = r#"{"f": [1e+22, 1e-05, 0.0001, 1.2345678901234568e+17, -0.0], "s": "a'b\n", "n": null}"#;
    assert_eq!(render("{{ v | tojson }}", inputs).unwrap(), wanted);
}

#[test]
fn an_error_says_what_the_template_says_and_where() {
    let error = print("line one\n\n{{ raise_exception('Only user and assistant roles') }}").unwrap_err();
    assert!(error.contains("chat template: Only user and assistant roles (line 3)"), "{error}");
    let error = print("a\n{% if %}\n").unwrap_err();
    assert!(error.contains("chat template:") && error.contains("line 2"), "{error}");
    let error = print("{{ strftime_now('%Q') }}").unwrap_err();
    assert!(error.contains("`%Q` is no format of strftime"), "{error}");
}

#[test]
fn inputs_that_are_none_are_refused_by_name() {
    for (json, wanted) in [
        ("[]", "a JSON object is needed, not sequence"),
        ("{", "not JSON"),
        ("{}", "there are no `messages`"),
        (r#"{"messages": {}}"#, "`messages` is no array"),
        (r#"{"messages": [{}, 3]}"#, "messages[1] is no object"),
    ] {
        let error = render("", json).unwrap_err();
        assert!(error.contains(wanted), "{json}: {error}");
    }
}
