use std::fs;
use std::time::Instant;

use super::findings::{MAX_LISTED, NOT_CHECKED};
use super::*;
use crate::config::{Config, Problem};

/// A configuration that applies policies, with these files in its folder of policies.
fn configured(apply: &str, files: &[(&str, &str)]) -> Result<Config, Vec<Problem>> {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join("policies")).unwrap();
    for (name, text) in files {
        fs::write(home.path().join("policies").join(name), text).unwrap();
    }
    let text = format!(r#"{{"policies": {{"folder": "./policies", "apply": {apply}}}}}"#);
    Config::parse(&text, None, home.path())
}

fn policy(apply: &str, language: &str, files: &[(&str, &str)]) -> Arc<Policy> {
    let config = configured(apply, files).unwrap();
    Arc::clone(config.policies.of_language(language).unwrap())
}

fn strict() -> Arc<Policy> {
    policy(r#"{"python": ["strict"]}"#, "python", &[])
}

fn file(name: &str, content: &[u8]) -> SourceFile {
    SourceFile {
        name: name.to_owned(),
        content: content.to_vec(),
        is_entrypoint: name.starts_with("main."),
    }
}

fn check(policy: &Policy, files: &[SourceFile]) -> Findings {
    policy.check(files, Instant::now() + Duration::from_secs(60))
}

/// The violations in a program, as "line:column rule".
fn found(policy: &Policy, code: &str) -> Vec<String> {
    let found = check(policy, &[file("main.py", code.as_bytes())]);
    let place = |v: &Violation| format!("{}:{} {}", v.line, v.column, v.rule);
    found.listed.iter().map(place).collect()
}

const CALLS: [&str; 15] = [
    "open",
    "__import__",
    "eval",
    "exec",
    "compile",
    "getattr",
    "setattr",
    "globals",
    "locals",
    "input",
    "help",
    "dir",
    "vars",
    "breakpoint",
    "memoryview",
];

const MODULES: [&str; 17] = [
    "os",
    "sys",
    "subprocess",
    "shutil",
    "socket",
    "requests",
    "urllib",
    "pathlib",
    "inspect",
    "types",
    "ctypes",
    "pickle",
    "marshal",
    "builtins",
    "platform",
    "resource",
    "signal",
];

/// A name in letters that Python takes for the usual ones.
fn wide(name: &str) -> String {
    let wide = |c: char| char::from_u32(u32::from(c) + 0xfee0).unwrap();
    name.chars().map(|c| if c.is_ascii_alphabetic() { wide(c) } else { c }).collect()
}

#[test]
fn strict_refuses_each_call_wherever_it_stands() {
    let strict = strict();
    for name in CALLS {
        let call = "forbidden-call";
        for (code, place) in [
            (format!("{name}()"), "1:1"),
            (format!("x = {name}('a', b=1)"), "1:5"),
            (format!("print(\n  {name} (1))"), "2:3"),
            (format!("def f():\n    return [{name}(x) for x in y]"), "2:13"),
            (format!("with {name}('f') as file: pass"), "1:6"),
            (format!("lambda: {name}(*a)"), "1:9"),
            (format!("f'{{{name}(1)}}'"), "1:4"),
            (format!("{name}(x for x in y)"), "1:1"),
            (format!("{name}(1).strip()"), "1:1"),
            (format!("é = {name}(1)"), "1:5"),
            (format!("if a:\r\n\t{name}(1)"), "2:2"),
            (format!("# a comment\r{name}(1)"), "2:1"),
            (format!("{name}(1) # ast-grep-ignore"), "1:1"),
            (format!("# ast-grep-ignore\n\n\n{name}(1)"), "4:1"),
        ] {
            assert_eq!(found(&strict, &code), [format!("{place} {call}")], "{code}");
        }
        for (code, place) in [
            (format!("({name})('1')"), "1:2"),
            (format!("x = (({name}))('1')"), "1:7"),
            (format!("({name}\n)('1')"), "1:2"),
            (format!("(\n  # a comment\n  {name} # another\n)('1')"), "3:3"),
            (format!("(x := {name})('1')"), "1:7"),
            (format!("{name}.__call__('1')"), "1:1"),
            (format!("{name}\\\n('1')"), "1:1"),
            (format!("f'{{x:{{{name}(1)}}}}'"), "1:7"),
            (format!("class A(({name})(1)): pass"), "1:10"),
            (format!("{}('1')", wide(name)), "1:1"),
            (format!("@{name}\ndef f(): pass"), "1:1"),
            (format!("@({name})\ndef f(): pass"), "1:1"),
        ] {
            assert_eq!(found(&strict, &code), [format!("{place} {call}")], "{code}");
        }
        assert_eq!(found(&strict, &format!("({name})(1); {name}(1)")).len(), 2);
        assert_eq!(found(&strict, &format!("{name}({name}(1))")).len(), 2);
    }
}

#[test]
fn strict_allows_text_that_looks_like_a_call() {
    let strict = strict();
    for name in CALLS {
        for code in [
            format!("x.{name}()"),
            format!("re.{name}('a')"),
            format!("self.file.{name}().read()"),
            format!("my_{name}()"),
            format!("{name}er()"),
            format!("'{name}()'"),
            format!("# {name}()"),
            format!("print('{name}(1)')"),
            format!("f(a.{name})"),
            format!("f({name}=1)"),
            format!("@x.{name}\ndef f(): pass"),
            format!("({name}, 1)"),
            format!("(x.{name})()"),
            format!("(f)({name})"),
        ] {
            assert_eq!(found(&strict, &code), [""; 0], "{code}");
        }
    }
}

#[test]
fn strict_refuses_each_import_in_every_form() {
    let strict = strict();
    for name in MODULES {
        for (code, place) in [
            (format!("import {name}"), "1:8"),
            (format!("import {name} as x"), "1:8"),
            (format!("import a, {name} as x"), "1:11"),
            (format!("import a, {name}, b"), "1:11"),
            (format!("import {name}.sub"), "1:8"),
            (format!("import {name}.sub.sub as x"), "1:8"),
            (format!("import {name} . sub"), "1:8"),
            (format!("from {name} import x"), "1:6"),
            (format!("from {name} import *"), "1:6"),
            (format!("from {name} import (x,\n    y as z)"), "1:6"),
            (format!("from {name}.sub import x"), "1:6"),
            (format!("def f():\n    import {name}"), "2:12"),
            (format!("try: import {name}\nexcept ImportError: pass"), "1:13"),
            (format!("a = 1; import {name}"), "1:15"),
            (format!("import \\\n  {name}"), "2:3"),
            (format!("import {}", wide(name)), "1:8"),
        ] {
            assert_eq!(found(&strict, &code), [format!("{place} forbidden-import")], "{code}");
        }
    }
    assert_eq!(found(&strict, "import os, math, sys").len(), 2);
}

#[test]
fn strict_lets_other_imports_pass() {
    let strict = strict();
    for name in MODULES {
        for code in [
            format!("import {name}mium"),
            format!("import my{name}"),
            format!("import {name}_"),
            format!("import a.{name}"),
            format!("from a import {name}"),
            format!("from a import {name} as x"),
            format!("from a.{name} import x"),
            format!("from . import {name}"),
            format!("from .{name} import x"),
            format!("from ..{name}.a import x"),
            format!("import a as {name}"),
            format!("{name} = 1; {name}.path"),
            format!("'import {name}'"),
        ] {
            assert_eq!(found(&strict, &code), [""; 0], "{code}");
        }
    }
    assert_eq!(found(&strict, "import typing, math\nfrom __future__ import annotations"), [""; 0]);
}

#[test]
fn a_violation_names_the_forbidden_call() {
    let found = check(&strict(), &[file("main.py", b"import os.path\neval('1')")]);
    assert_eq!(
        found.to_string(),
        "main.py:1:8: importing os.path is not allowed (forbidden-import)\n\
         main.py:2:1: calling eval is not allowed (forbidden-call)"
    );
}

#[test]
fn every_file_that_could_be_run_is_checked_and_named() {
    let bad = b"import os";
    let files = [
        file("main.txt", bad),
        file("a/b.py", bad),
        file("notes.txt", bad),
        file("noextension", bad),
    ];
    let found = check(&strict(), &files);
    let files: Vec<_> = found.listed.iter().map(|v| v.file.as_str()).collect();
    assert_eq!(files, ["main.txt", "a/b.py"]);
}

#[test]
fn listed_violations_are_limited() {
    let found = check(&strict(), &[file("main.py", "eval(1)\n".repeat(50).as_bytes())]);
    assert_eq!((found.listed.len(), found.more), (20, 30));
    assert!(found.to_string().ends_with("\nand 30 more"), "{found}");
}

#[test]
fn unreadable_input_is_rejected() {
    let large = vec![b'('; check::MAX_SIZE + 1];
    for content in [large.as_slice(), b"\xff\xfe", b"x = '\xe9'"] {
        let found = check(&strict(), &[file("main.py", content)]);
        assert_eq!(found.listed[0].rule, NOT_CHECKED);
        assert_eq!(found.listed[0].file, "main.py");
    }
    let late = strict().check(&[file("main.py", b"pass")], Instant::now());
    assert_eq!(late.listed[0].rule, NOT_CHECKED);
}

#[test]
fn checks_of_hostile_sources_end() {
    let strict = strict();
    let half = check::MAX_SIZE / 2;
    for code in [
        "(".repeat(2 * half),
        "[".repeat(half) + &"]".repeat(half),
        "-".repeat(2 * half - 1) + "1",
        "a.".repeat(half - 1) + "a",
        "a(".repeat(half / 2) + &")".repeat(half / 2),
        "if a:\n ".repeat(half / 8),
        (0..700).map(|depth| " ".repeat(depth) + "if a:\n").collect(),
        "f'{".repeat(half / 2),
        "'''".repeat(half / 2),
        "\\\n".repeat(half),
        "\u{0}".repeat(2 * half),
        "lambda:".repeat(half / 4),
        "not ".repeat(half / 2),
        "import ".repeat(half / 4),
        "@".repeat(half),
        "a if b else ".repeat(half / 8),
        "{**".repeat(half / 2),
        "match x:\n case [".repeat(half / 16),
    ] {
        let shown: String = code.chars().take(20).collect();
        let found =
            strict.check(&[file("main.py", code.as_bytes())], Instant::now() + CHECK_TIMEOUT);
        assert!(found.listed.len() <= MAX_LISTED, "{shown}");
    }
}

#[test]
fn a_rule_for_javascript_holds_for_every_file_that_node_runs() {
    let rule =
        "id: no-eval\nlanguage: JavaScript\nmessage: eval of $A\nrule: { pattern: eval($A) }";
    let policy = policy(r#"{"javascript": ["mine"]}"#, "javascript", &[("mine.yaml", rule)]);
    for name in ["main.js", "lib.mjs", "lib.cjs", "main.ts", "lib.mts", "main.txt"] {
        let found = check(&policy, &[file(name, b"eval('1')")]);
        assert_eq!(found.to_string(), format!("{name}:1:1: eval of '1' (no-eval)"));
    }
    let typed = check(&policy, &[file("main.ts", b"const a: number = eval('1');")]);
    assert_eq!(typed.listed[0].column, 19);
}

#[test]
fn a_rule_holds_in_every_spelling() {
    let rules = "id: e\nlanguage: JavaScript\nmessage: a\nrule: { any: [{ pattern: eval($A) }, { pattern: new Function($A) }] }\n---\n\
                 id: p\nlanguage: Go\nmessage: a\nrule: { pattern: panic($A) }\n---\n\
                 id: call\nlanguage: Go\nmessage: a\nrule: { kind: call_expression }\n---\n\
                 id: s\nlanguage: Bash\nmessage: a\nrule: { kind: command, regex: ^eval\\b }";
    let apply = r#"{"javascript": ["mine"], "go": ["mine"]}"#;
    let config = configured(apply, &[("mine.yml", rules)]).unwrap();
    let bash = rules::read("mine", rules).unwrap();
    let bash = Policy::of_rules(Vec::new(), vec![Arc::new(bash)], &[".sh".to_owned()]).unwrap();
    for code in
        ["eval x", "'eval' x", "\"eval\" x", "\\eval x", "e'va'l x", "if \\eval x; then :; fi"]
    {
        let found = check(&bash, &[file("main.sh", code.as_bytes())]);
        assert_eq!(found.listed.len(), 1, "{code}: {found}");
    }
    let javascript = [
        "(eval)('1')",
        "(/* a */ eval)('1')",
        "(0, eval)('1')",
        "eval?.('1')",
        "(x = eval)('1')",
        r"\u0065val('1')",
        r"ev\u{61}l('1')",
        "new (Function)('1')",
        "(eval\n)('1')",
    ];
    let typescript = ["eval!('1')", "(eval as any)('1')", "(<any>eval)('1')", "eval<any>('1')"];
    let go = ["(panic)(1)", "((panic))(1)", "f((\npanic)(1))"];
    for (language, file_name, code) in javascript
        .map(|code| ("javascript", "main.js", code.to_owned()))
        .into_iter()
        .chain(javascript.map(|code| ("javascript", "main.ts", code.to_owned())))
        .chain(typescript.map(|code| ("javascript", "main.ts", code.to_owned())))
        .chain(go.map(|code| ("go", "main.go", format!("package main\nfunc main() {{ {code} }}"))))
    {
        let found = check(
            config.policies.of_language(language).unwrap(),
            &[file(file_name, code.as_bytes())],
        );
        let of = |id: &str| found.listed.iter().filter(|violation| violation.rule == id).count();
        assert_eq!(of("e") + of("p"), 1, "{code}: {found}");
        assert_eq!(
            of("call"),
            if language == "go" {
                code.matches(")(").count() + code.matches("f(").count()
            } else {
                0
            },
            "{code}: {found}"
        );
    }
}

#[test]
fn a_message_repeats_little_of_the_program_and_in_one_line() {
    let rule = "id: a\nlanguage: Python\nmessage: $A\nrule: { pattern: eval($A) }";
    let policy = policy(r#"{"python": ["mine"]}"#, "python", &[("mine.yml", rule)]);
    let code = format!("eval('''a\n{}''')", "x".repeat(5000));
    let message = &check(&policy, &[file("main.py", code.as_bytes())]).listed[0].message;
    assert!(message.starts_with("'''a xxx") && message.chars().count() == 201, "{message}");
}

#[test]
fn a_rule_that_is_off_is_off() {
    let rules = "id: a\nlanguage: Go\nmessage: a\nseverity: off\nrule: { pattern: panic($A) }\n---\n\
                 id: b\nlanguage: Go\nmessage: b\nrule: { pattern: print($A) }";
    let policy = policy(r#"{"go": ["mine"]}"#, "go", &[("mine.yml", rules)]);
    let code = b"package main\nfunc main() { panic(1); print(2) }";
    assert_eq!(check(&policy, &[file("main.go", code)]).to_string(), "main.go:2:25: b (b)");
}

#[test]
fn no_policy_applies_by_default() {
    let config = Config::parse("{}", None, Path::new("")).unwrap();
    assert!(!config.policies.apply_to("python"));
    let none = configured(r#"{"python": [], "cobol": []}"#, &[]).unwrap();
    assert!(!none.policies.apply_to("python"));
}

#[test]
fn errors_in_policies_have_their_place() {
    const RULE: &str = "id: a\nlanguage: Python\nmessage: a\nrule: { pattern: eval($A) }";
    let wrong = |apply: &str, file: &str| {
        let files = [("mine.yml", file)];
        let problems = configured(apply, if file.is_empty() { &[] } else { &files }).unwrap_err();
        assert_eq!(problems.len(), 1, "{problems:?}");
        (problems[0].path.clone(), problems[0].message.clone())
    };
    for (apply, file, path, hint) in [
        (r#"{"cobol": ["strict"]}"#, "", "policies.apply.cobol", "go, javascript, python"),
        (r#"{"python": ["lax"]}"#, "", "policies.apply.python[0]", "there are: strict"),
        (r#"{"go": ["strict"]}"#, "", "policies.apply.go[0]", "no rules for go"),
        ("{}", "id: [", "policies.folder", "mine.yml: "),
        ("{}", "just text", "policies.folder", "mine.yml: "),
        ("{}", "# nothing", "policies.folder", "mine.yml: has no rules"),
        ("{}", &RULE.replace("id: a", ""), "policies.folder", "rule 1: needs an id"),
        ("{}", &RULE.replace("message: a", ""), "policies.folder", "rule 1 (a): needs a message"),
        ("{}", &RULE.replace("Python", "Rust"), "policies.folder", "\"Rust\" are not supported"),
        ("{}", &format!("{RULE}\nrul: 1"), "policies.folder", "rul"),
        ("{}", &RULE.replace("pattern", "kind"), "policies.folder", "rule 1 (a): "),
        ("{}", &format!("{RULE}\n---\n{RULE}"), "policies.folder", "rule 2 (a): another"),
    ] {
        let (found, message) = wrong(apply, file);
        assert_eq!(found, path, "{message}");
        assert!(message.contains(hint), "no {hint:?} in {message:?}");
    }
    let files = [("strict.yml", RULE)];
    let taken = configured("{}", &files).unwrap_err();
    assert!(taken[0].message.contains("\"strict\" already"), "{taken:?}");
    let nowhere = r#"{"policies": {"folder": "./nowhere"}}"#;
    let missing = Config::parse(nowhere, None, Path::new("/conf")).unwrap_err();
    assert_eq!(missing[0].path, "policies.folder");
    assert!(missing[0].message.contains("/conf/./nowhere"), "{missing:?}");
    let typed = RULE.replace("Python", "TypeScript");
    let half = configured(r#"{"javascript": ["mine"]}"#, &[("mine.yml", &typed)]).unwrap_err();
    assert!(half[0].message.contains("no rule for JavaScript"), "{half:?}");
}
