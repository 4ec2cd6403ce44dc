//! The compiled program, run as the kernel runs it.

use seccompiler::sock_filter;

use super::super::{Errno, Rule, Verdict, kernel};
use super::{Comparison, Filtered, HIGH, kernel_programs, verdict_of};

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;

/// Runs a program on a call, as the kernel's interpreter does.
fn run(program: &[sock_filter], number: u32, args: &[u64]) -> u32 {
    let architecture = match std::env::consts::ARCH {
        "x86_64" => 0xc000_003e,
        _ => 0xc000_00b7,
    };
    let word = |offset: usize| match offset {
        0 => number,
        4 => architecture,
        _ => {
            let arg = args.get((offset - 16) / 8).copied().unwrap_or(0);
            (arg >> (8 * (offset % 8))) as u32
        }
    };
    let (mut at, mut accumulator) = (0, 0_u32);
    loop {
        let sock_filter { code, jt, jf, k } = program[at];
        at += 1;
        let mut jump = |holds: bool| at += usize::from(if holds { jt } else { jf });
        match code {
            0x20 => accumulator = word(k as usize),
            0x54 => accumulator &= k,
            0x05 => at += k as usize,
            0x15 => jump(accumulator == k),
            0x25 => jump(accumulator > k),
            0x35 => jump(accumulator >= k),
            0x06 => return k,
            _ => panic!("an instruction that is not known: {code:x}"),
        }
    }
}

const FILTERS: [Filtered; 2] = [Filtered::Program, Filtered::Template];

fn program(filtered: Filtered) -> Vec<sock_filter> {
    kernel_programs(filtered).expect("the profile compiles").remove(0)
}

fn errno(errno: Errno) -> u32 {
    ERRNO | errno.number()
}

/// Values around all that a call is asked for, in each of its arguments.
fn interesting(rules: &[&Rule<'_>]) -> Vec<[u64; 6]> {
    let mut found = vec![[0; 6]];
    for rule in rules {
        let mut holding = [0; 6];
        for check in &rule.checks {
            let (Comparison::Equal(value)
            | Comparison::NotEqual(value)
            | Comparison::Above(value)
            | Comparison::Masked { value, .. }) = check.comparison;
            holding[check.arg as usize] = value;
        }
        found.push(holding);
        for check in &rule.checks {
            for change in [1, 2, 0x8000_0000, 1 << 32, HIGH] {
                let mut args = holding;
                args[check.arg as usize] ^= change;
                found.push(args);
                args[check.arg as usize] = holding[check.arg as usize].wrapping_add(change);
                found.push(args);
            }
        }
    }
    found
}

#[test]
fn the_compiled_program_agrees_with_the_rules() {
    let mut calls = 0;
    for filtered in FILTERS {
        let (program, rules) = (program(filtered), kernel::rules(filtered));
        for name in rules.iter().flat_map(|rule| rule.syscalls) {
            let Some(number) = kernel::number(name) else { continue };
            let named: Vec<_> = rules.iter().filter(|rule| rule.syscalls.contains(name)).collect();
            for args in interesting(&named) {
                let expected = match verdict_of(&rules, name, &args) {
                    Some(Verdict::Allow) => ALLOW,
                    Some(Verdict::Refuse(refusal)) => errno(refusal),
                    None => errno(Errno::NoSys),
                };
                let number = u32::try_from(number).unwrap();
                let found = run(&program, number, &args);
                assert_eq!(found, expected, "{name} {args:x?}: {found:x}");
                calls += 1;
            }
        }
    }
    assert!(calls > 2000, "{calls} calls");
}

#[test]
fn unknown_system_calls_get_the_default_action() {
    let program = program(Filtered::Program);
    for number in [380, 500, 999, u32::MAX] {
        assert_eq!(run(&program, number, &[]), errno(Errno::NoSys), "{number}");
    }
}

#[test]
fn there_is_one_program_and_it_fits_into_the_kernel_with_room() {
    for filtered in FILTERS {
        let lengths: Vec<_> = kernel_programs(filtered).unwrap().iter().map(Vec::len).collect();
        assert!(matches!(lengths[..], [..3000]), "{lengths:?}");
    }
}

#[test]
fn only_a_template_enters_sandboxes_and_only_all_namespaces_of_one() {
    let setns = u32::try_from(kernel::number("setns").unwrap()).unwrap();
    let all = 0x7e02_0000;
    for (filtered, namespaces, expected) in [
        (Filtered::Program, all, errno(Errno::Perm)),
        (Filtered::Template, all, ALLOW),
        (Filtered::Template, all & !0x1000_0000, errno(Errno::Perm)),
        (Filtered::Template, 0, errno(Errno::Perm)),
        (Filtered::Template, all | 1 << 32, errno(Errno::Perm)),
    ] {
        assert_eq!(run(&program(filtered), setns, &[3, namespaces]), expected, "{namespaces:x}");
    }
}
