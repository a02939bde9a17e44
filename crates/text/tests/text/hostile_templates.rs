//! Hostile templates are refused in bounded time and memory, on a stack of 1 MiB, half of a thread's default.

use std::sync::mpsc;
use std::time::Duration;

use foretoken_text::{ChatInput, Message};
use proptest::prelude::*;

use crate::template_probe::written;

/// What a template writes for one message, or why it is refused.
fn run(source: &str) -> Result<String, String> {
    run_with(source, ChatInput::new(&[Message::new("user", "hi <b>")], true))
}

/// Runs on a small stack with a time limit.
fn run_with(source: &str, input: ChatInput) -> Result<String, String> {
    let (sender, receiver) = mpsc::channel();
    let source = source.to_owned();
    let shown: String = source.chars().take(300).collect();
    let act = move || {
        let _ = sender.send(written(&source, &input));
    };
    let thread = std::thread::Builder::new().stack_size(1 << 20).spawn(act).expect("a thread");
    let answer = receiver.recv_timeout(Duration::from_secs(20)).unwrap_or_else(|_| panic!("still runs: {shown}"));
    thread.join().expect("it has answered");
    answer
}

fn refused(source: &str) -> String {
    match run(source) {
        Err(error) => error,
        Ok(text) => panic!("expected a refusal of {:.200}, found {:.200}", source, text),
    }
}

#[test]
fn deep_sources_are_refused() {
    let wrap = |before: &str, middle: &str, behind: &str, count: usize| {
        format!("{{{{ {}{middle}{} }}}}", before.repeat(count), behind.repeat(count))
    };
    for count in [300, 50_000] {
        let chains =
            ["-", "not ", "(", "[", "a if b else ", "a(", "a[", "{'a':", "1+", "1*", "1~", "x and ", "1<", "2**"];
        for before in chains {
            let error = refused(&wrap(before, "1", "", count));
            assert!(error.contains("line 1: expected") || error.contains("expected at most"), "{before}: {error}");
        }
        for behind in [".a", "[0]", "|trim", "()", " is none", " if b", ")", "]"] {
            refused(&wrap("", "x", behind, count));
        }
    }
    for (begin, end) in
        [("{% if a %}", "{% endif %}"), ("{% for a in b %}", "{% endfor %}"), ("{% set a %}", "{% endset %}")]
    {
        let error = refused(&format!("{}{}", begin.repeat(5000), end.repeat(5000)));
        assert!(error.contains("expected blocks at most 60 levels deep"), "{error}");
    }
    let elifs = format!("{{% if a %}}{}{{% endif %}}", "{% elif b %}x".repeat(20_000));
    assert!(refused(&elifs).contains("levels deep"));
    assert!(refused(&" ".repeat((1 << 20) + 1)).contains("expected at most 1048576 bytes"));
}

#[test]
fn long_but_shallow_templates_are_accepted() {
    let list = format!("{{% set x = [{}] %}}{{{{ x | length }}}}", "['a', 1], ".repeat(2000));
    assert_eq!(run(&list).as_deref(), Ok("2000"));
    let sets = format!("{}{{{{ a }}}}", "{% set a = 1 %}".repeat(3000));
    assert_eq!(run(&sets).as_deref(), Ok("1"));
    let nested = format!("{}x{}", "{% if true %}".repeat(55), "{% endif %}".repeat(55));
    assert_eq!(run(&nested).as_deref(), Ok("x"));
    let chain = format!("{{{{ {}'' }}}}", "'a' ~ ".repeat(200));
    assert_eq!(run(&chain).as_deref(), Ok("a".repeat(200).as_str()));
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(60), ")".repeat(60));
    assert_eq!(run(&deep).as_deref(), Ok("1"));
}

#[test]
fn cyclic_values_are_refused() {
    for value in ["ns", "[ns]", "{'a': ns}", "(ns, 1)", "m", "[m]", "loop", "[loop]", "dict(a=ns)", "[[1, ns]] + []"] {
        let source = format!(
            "{{% macro m() %}}{{% endmacro %}}{{% set ns = namespace() %}}{{% for x in [1] %}}\
             {{% set ns.a = {value} %}}{{% endfor %}}{{{{ ns }}}}{{{{ ns == ns.a }}}}"
        );
        assert!(refused(&source).contains("expected data"), "{value}");
    }
    assert!(refused("{% set ns = namespace(a=namespace()) %}{{ ns }}").contains("expected data"));
}

#[test]
fn split_pieces_are_charged_before_they_are_allocated() {
    for pieces in ["'a'.split('')", "'a'.rsplit('', 3)", "'a'.partition('')"] {
        assert!(refused(&format!("{{{{ {pieces} }}}}")).contains("empty separator"), "{pieces}");
    }
    for pieces in ["split('')|length", "split('a')|length", "replace('a', '\\n')|lines|length"] {
        let begin = std::time::Instant::now();
        let error = refused(&format!("{{% set all = 'a' * 4000000 %}}{{{{ all|{pieces} }}}}"));
        assert!(error.contains("expected at most"), "{pieces}: {error}");
        assert!(begin.elapsed().as_secs() < 5, "{pieces}: {:?}", begin.elapsed());
    }
}

#[test]
fn deep_values_are_refused() {
    for wrap in ["[ns.a]", "{'a': ns.a}", "(ns.a,)", "ns.a[0:]", "ns.a|map('trim')", "ns.a|items", "dict(a=ns.a)"] {
        let source = format!(
            "{{% set ns = namespace(a=[]) %}}{{% for i in range(90000) %}}{{% set ns.a = {wrap} %}}\
             {{% endfor %}}{{{{ ns.a }}}}"
        );
        match run(&source) {
            Ok(text) => assert!(text.len() < 100, "{wrap}"),
            Err(error) => assert!(!error.is_empty(), "{wrap}"),
        }
    }
    assert!(
        refused("{% set ns = namespace(a=[]) %}{% for i in range(90000) %}{% set ns.a = [ns.a] %}{% endfor %}")
            .contains("levels deep")
    );
    assert!(
        refused(&format!("{{% set x = [] %}}{}{{{{ x }}}}", "{% set x = [x] %}".repeat(20_000)))
            .contains("levels deep")
    );
}

#[test]
fn bombs_are_refused() {
    let doubled = |value: &str| format!("{{% set x = {value} %}}{}", "{% set x = [x, x] %}".repeat(60));
    for end in [
        "{{ x }}",
        "{{ x == x[0] }}",
        "{{ x in x }}",
        "{{ x | tojson }}",
        "{{ x | string }}",
        "\
             {{ x | sort }}",
    ] {
        refused(&format!("{}{end}", doubled("'a'")));
    }
    let twice = "{% set ns = namespace(a='a', b=[1]) %}{% for i in range(90) %}";
    let refusals = [
        format!("{twice}{{% set ns.a = ns.a ~ ns.a %}}{{% endfor %}}"),
        format!("{twice}{{% set ns.a = ns.a + ns.a %}}{{% endfor %}}"),
        format!("{twice}{{% set ns.b = ns.b + ns.b %}}{{% endfor %}}{{{{ ns.b }}}}"),
        format!("{twice}{{% set ns.a = ns.a|replace('a', 'aaaaaaaaaaaa') %}}{{% endfor %}}"),
        format!("{twice}{{% set ns.a = ns.a.replace('a', 'aaaaaaaaaaaa') %}}{{% endfor %}}"),
        format!("{twice}{{% set ns.a = [ns.a, ns.a, ns.a]|join(ns.a) %}}{{% endfor %}}"),
        format!("{twice}{{% set ns.a = ns.a.join([ns.a, ns.a, ns.a]) %}}{{% endfor %}}"),
        format!("{twice}{{% set ns.a = '{{0}}{{0}}{{0}}'.format(ns.a) %}}{{% endfor %}}"),
        "{{ ('b' * 60000).join('a' * 90000) | length }}".to_owned(),
        "{{ 'a' * 10**12 }}".to_owned(),
        "{{ 'a' * 100000000 }}".to_owned(),
        "{{ '%99999999999d' | format(1) }}".to_owned(),
        "{{ '%.2000000000f' | format(1.5) }}".to_owned(),
        "{{ '{:>99999999999}'.format(1) }}".to_owned(),
        "{{ '{:.2000000000f}'.format(1.5) }}".to_owned(),
        "{{ '\n' * 100000 | indent(1000) }}".to_owned(),
        "{{ ('\n' * 1000000) | indent('a' * 1000000) }}".to_owned(),
        "{{ [[[1] * 1000] * 1000] * 1000 == 1 }}".to_owned(),
        "{% set x = [1] * 1000 %}{% set x = [x] * 1000 %}{% set x = [x] * 1000 %}{{ x }}".to_owned(),
        "{{ (('a' * 1000000) ~ 'b') * 100 }}".to_owned(),
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}".to_owned(),
        "{% block a %}{{ self.a() }}{% endblock %}".to_owned(),
        "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}".to_owned(),
        "{% set x = range(90000)|list %}{% for i in range(90000) %}{{ x == x[:] }}{% endfor %}".to_owned(),
        "{% set x = 'a' * 1000000 %}{% set y = 'a' * 1000000 %}{% for i in range(90000) %}{{ x == y }}\
             {% endfor %}"
            .to_owned(),
        "{% set x = {} %}{% set y = (range(90000)|list,) %}{% for i in range(90000) %}{{ x[y] }}{{ x.get(y) }}\
             {% endfor %}"
            .to_owned(),
        "{% set x = ('a ' * 1000000).split() %}{% for i in range(900) %}{% set y = x|sort %}{% endfor %}".to_owned(),
        "{% for i in range(90000) %}{{ messages|tojson(indent=16)|length }}{{ [messages] * 1000 }}\
             {% endfor %}"
            .to_owned(),
    ];
    for source in refusals {
        refused(&source);
    }
}

/// Work that the engine's own fuel does not count, or counts too low: each took seconds, minutes or gigabytes.
#[test]
fn cheap_looking_work_is_charged() {
    let long = "{% set s = 'é' * 1000000 %}";
    let often = |body: &str| format!("{long}{{% set d = {{s: 1}} %}}{{% for i in range(90000) %}}{body}{{% endfor %}}");
    let sources = [
        "{% set s = 'ab' * 1000000 %}{{ s|trim('c' * 1000000 ~ 'ab') }}".to_owned(),
        "{% set s = 'ab' * 1000000 %}{{ s.strip('c' * 1000000 ~ 'ab') }}".to_owned(),
        "{% set s = 'ab' * 1000000 %}{% set l = [s] %}{{ l|map('trim', 'c' * 1000000 ~ 'ab')|list }}".to_owned(),
        "{% set x = range(900)|list %}{% set x = [x] * 900 %}{{ x|sum(start=[])|length }}".to_owned(),
        "{% set x = range(900)|list %}{% set x = [x] * 900 %}{{ [x]|map('sum', start=[])|list|length }}".to_owned(),
        "{% set a = 'a,' * 10000 %}{{ range(9000)|sort(attribute=a)|length }}".to_owned(),
        "{% set s = '%(a)s' * 10000 %}{{ s|format(a=range(90000)|list)|length }}".to_owned(),
        "{% set s = '%(a)s' * 10000 %}{% set l = [s] %}{{ l|map('format', a=range(90000)|list)|list }}".to_owned(),
        "{{ ('a' * 9000)|join('', '0' * 3000000) }}".to_owned(),
        "{{ range(9000)|join('', attribute='0' * 3000000) }}".to_owned(),
        "{{ range(9000)|sum(attribute='0' * 3000000) }}".to_owned(),
        "{{ range(9000)|min(attribute='0' * 3000000) }}".to_owned(),
        often("{% set x = s[-1:] %}"),
        often("{{ s[-1] }}"),
        often("{% for c in s %}{% break %}{% endfor %}"),
        often("{% for a in [1] recursive %}{% if loop.depth == 1 %}{{ loop(s) }}{% endif %}{% break %}{% endfor %}"),
        often("{% if s is sequence %}{% endif %}"),
        often("{% set x = {s: 1} %}"),
        often("{% set x = dict(**d) %}"),
        often("{% set x = namespace(**d) %}"),
    ];
    for source in sources {
        let begun = std::time::Instant::now();
        let error = refused(&source);
        assert!(error.contains("steps or 16 MiB"), "{source}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(5), "{:?}: {source}", begun.elapsed());
    }
}

/// The engine's fuel counts the first level of what it compares, and a text that it writes after it was written.
#[test]
fn contents_are_charged_where_they_are_read() {
    let lists = "{% set x = [range(20000)|list] %}{% set y = [range(20000)|list] %}{% for i in range(90000) %}";
    let bodies = ["x == y", "x < y", "x[0] in y", "x is eq(y)", "x[0] is in(y)", "loop.changed(x if i % 2 else y)"];
    let mut sources: Vec<String> = bodies.iter().map(|body| format!("{lists}{{{{ {body} }}}}{{% endfor %}}")).collect();
    sources.push("{% set s = 'A' * 2000000 %}{% for i in range(90000) %}{{ s is upper }}{% endfor %}".to_owned());
    let fields: String = (0..10_000).map(|field| format!("{{% set ns.a{field} = x %}}")).collect();
    sources.push(format!(
        "{{% set ns = namespace() %}}{{% set x = range(90000)|list %}}{fields}{{{{ (ns ~ '')|length }}}}"
    ));
    for source in sources {
        let begun = std::time::Instant::now();
        let error = refused(&source);
        assert!(error.contains("steps or 16 MiB"), "{source:.200}: {error}");
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}: {source:.200}", begun.elapsed());
    }
}

#[test]
fn a_template_does_not_run_itself_without_meters() {
    let deep = format!("{{% if x is defined %}}{}{{% else %}}{{% set x = [] %}}", "{% set x = [x] %}".repeat(20_000));
    for again in ["{% include 'chat' %}", "{% import 'chat' as c %}", "{% extends 'chat' %}"] {
        let error = refused(&format!("{deep}{again}{{% endif %}}"));
        assert!(error.contains("expected one template, found a second"), "{error}");
    }
}

#[test]
fn panics_of_the_engine_are_errors() {
    for call in ["loop.cycle()", "loop.cycle(*[])"] {
        let error = refused(&format!("\n{{% for i in [1] %}}{{{{ {call} }}}}{{% endfor %}}"));
        assert_eq!(error, "test: chat template: line 2: loop.cycle: expected values, found none");
    }
    let found = include_bytes!("../../../../fuzz/corpus/templates/8-panic-of-format.jinja");
    let error = refused(&String::from_utf8_lossy(found));
    assert!(error.starts_with("test: chat template: the library of templates failed: "), "{error}");
    assert_eq!(run("{% for i in [1, 2] %}{{ loop.cycle('a', 'b') }}{% endfor %}").as_deref(), Ok("ab"));
}

#[test]
fn errors_name_the_line_and_show_no_control_characters() {
    let error = refused("{% macro m(x) %}\n\n{{ x.a.b }}\n{% endmacro %}\n{{ m(1) }}");
    assert_eq!(error, "test: chat template: line 3: undefined value");
    let error = refused("\n{{ 'a'|nothing }}");
    assert_eq!(error, "test: chat template: line 2: unknown filter: filter nothing is unknown");
    let error = refused("{{ 1 }}\n{{ raise_exception('a\\u001b[31m\\u202eb' ~ 'c' * 1000000) }}");
    assert!(error.starts_with("test: chat template: line 2: invalid operation: a\\u{1b}[31m\\u{202e}bccc"), "{error}");
}

#[test]
fn long_conversations_are_rendered() {
    let messages: Vec<Message> = (0..2000)
        .map(|turn| {
            Message::new(
                if turn % 2 == 0 { "user" } else { "assistant" },
                format!("turn {turn} {}", "word ".repeat(40)),
            )
        })
        .collect();
    let expected: usize =
        messages.iter().map(|message| message.content().map_or(0, |text| text.trim().len()) + 1).sum();
    for source in [
        "{% set ns = namespace(text='') %}{% for m in messages %}{% set ns.text = ns.text ~ m.content|trim ~ '\\n' %}\
         {% endfor %}{{ ns.text }}",
        "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [m] %}{% endfor %}\
         {% for m in ns.all %}{% if messages[loop.index0].role == m.role %}{{ m['content'].strip() + '\\n' }}\
             {% endif %}{% endfor %}",
        "{% for m in messages %}{% if not (messages|last == m and false) %}\
             {{ m.content.split(' ')|join(' ')|trim }}{{ '\\n' }}\
         {% endif %}{% endfor %}",
    ] {
        let written = run_with(source, ChatInput::new(&messages, true));
        assert_eq!(written.map(|text| text.len()), Ok(expected), "{source}");
    }
}

#[rustfmt::skip]
const VALUES: [&str; 35] = [
    "x", "ns.a", "ns.b", "messages", "messages[0]", "loop", "m", "ns", "'a'", "1", "range(300)", "[x, x]",
    "{'k': x}", "(x, ns.a)", "x ~ ns.a", "x + x", "[x] * 9", "x[1:]", "x[::-1]", "m(x)", "dict(a=x)",
    "messages|map('tojson')|list", "x == ns.b", "x in ns.b", "loop.changed(x)", "loop.previtem",
    "x.split('a')", "x.join([x])", "x.items()", "'%s'|format(x)", "x.replace('a', ns.a)", "1e308 * 10", "-x",
    "2**100", "x if x else ns.b",
];

#[rustfmt::skip]
const FILTERS: [&str; 27] = [
    "", "", "|list", "|sort", "|unique", "|string", "|tojson", "|tojson(indent=4)", "|join(ns.a)",
    "|items|list", "|batch(2)", "|groupby('a')", "|indent(9)", "|reverse", "|length", "|first", "|min",
    "|zip(x)", "|select", "|pprint", "|dictsort", "|map('string')", "|chain(x)", "|sum",
    "|replace('a', 'bb')", "|default(ns)", "|selectattr('a', 'eq', x)",
];

/// Random templates from parts of the syntax.
fn hostile() -> impl Strategy<Value = String> {
    let value = prop::sample::select(&VALUES[..]);
    let filter = prop::sample::select(&FILTERS[..]);
    let piece = (value, filter, 0..12u8).prop_map(|(value, filter, form)| match form {
        0..=2 => format!("{{% set x = {value}{filter} %}}"),
        3..=4 => format!("{{% set ns.a = {value}{filter} %}}"),
        5 => format!("{{% set ns.b = [ns.b, {value}{filter}] %}}"),
        6 => format!("{{% if {value} %}}{{% set ns.b = x %}}{{% endif %}}"),
        7 => format!("{{% for y in {value}{filter} %}}{{% set ns.a = y %}}{{% set ns.b = [ns.b] %}}{{% endfor %}}"),
        8 => {
            format!(
                "{{% macro m(x) %}}{{% set ns.b = [ns.b, x] %}}{{{{ m({value}) }}}}{{% endmacro %}}\
             {{{{ m(x) }}}}"
            )
        }
        9 => format!("{{% set x %}}{{{{ {value}{filter} }}}}{{{{ x }}}}{{% endset %}}"),
        _ => format!("{{{{ {value}{filter} }}}}"),
    });
    let around = "{% set ns = namespace(a='ab', b=[1]) %}{% set x = ['a'] %}{% macro m(x) %}{{ x }}{% endmacro %}";
    prop::collection::vec(piece, 1..12)
        .prop_map(move |pieces| format!("{around}{{% for i in range(2000) %}}{}{{% endfor %}}", pieces.concat()))
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn no_template_ends_the_process(source in hostile()) {
        let _ = run(&source);
    }
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: cases(), max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() }
}

/// The number of cases, by default or from `FORETOKEN_HOSTILE_CASES`.
fn cases() -> u32 {
    std::env::var("FORETOKEN_HOSTILE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(32)
}

/// Small templates as seeds of the fuzzer.
const SEEDS: [&str; 8] = [
    "{% for m in messages %}{{ m['role'] + ': ' + m.content | trim }}{% endfor %}",
    "{% set ns = namespace(a='a', b=[1]) %}{% for i in range(60) %}{% set ns.a = ns.a ~ ns.a %}{% endfor %}\
             {{ ns.a }}",
    "{% set x = [1] %}{% set x = [x, x] %}{{ x == x[0] }}{{ x | tojson(indent=2) }}{{ x | sort | string }}",
    "{% macro m(x) %}{{ x }}{{ m([x]) }}{% endmacro %}{{ m(1) }}",
    "{% if messages[-1].content is string and 'b' in messages[0]['content'] %}{{ '%5d' | format(3) }}{% elif a %}\
             {% endif %}",
    "{% for a in [[1, [2]]] recursive %}{{ loop(a) if a is sequence else a }}{{ loop.changed(a) }}{% endfor %}",
    "{{ 'a b'.split()|map('upper')|join('-')|replace('A', 'x' * 9)|indent(2) }}{{ '{:>5}'.format(1) }}",
    "{% generation %}{% set x %}a{{ bos_token }}{% endset %}{{ x[1:] ~ dict(a=1)|items|list }}\
             {% endgeneration %}{# #}",
];

/// Writes the seeds of the fuzzers.
#[test]
#[ignore = "writes files of the repository"]
fn write_the_seeds() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let write = |target: &str, name: String, bytes: &[u8]| {
        std::fs::create_dir_all(corpus.join(target)).expect("a folder can be made");
        std::fs::write(corpus.join(target).join(name), bytes).expect("a seed can be written");
    };
    SEEDS.iter().enumerate().for_each(|(at, seed)| write("templates", format!("{at}.jinja"), seed.as_bytes()));
    for base in 0..5_u8 {
        write("tokenizer", format!("{base}.bin"), &[0, base]);
        write(
            "tokenizer",
            format!("{base}-parts.bin"),
            &[0, base, 0, 2, 0, 3 * base, 0, 16 + base, 0, 1, 0, 7, 0, 9, base],
        );
    }
}

#[test]
fn the_seeds_are_refused_or_rendered() {
    assert_eq!(SEEDS.iter().filter(|seed| run(seed).is_ok()).count(), 6);
}
