//! The profile in the form that the Docker API takes.

use std::sync::LazyLock;

use serde_json::{Value, json};

use super::profile::{Architecture, PROFILE, Profile};
use super::{Check, Comparison, Rule, Verdict};

/// The profile as the Docker API takes it, after `seccomp=` in the security options.
pub fn docker_profile() -> &'static str {
    static DOCKER: LazyLock<String> = LazyLock::new(|| docker(&PROFILE).to_string());
    &DOCKER
}

fn docker(profile: &Profile) -> Value {
    let architectures = profile.architectures();
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": profile.default_errno().number(),
        "archMap": architectures.iter().map(|name| docker_architecture(*name)).collect::<Vec<_>>(),
        "syscalls": profile.rules().iter().map(docker_rule).collect::<Vec<_>>(),
    })
}

/// An architecture without the older ones that it can also run.
fn docker_architecture(architecture: Architecture) -> Value {
    let name = match architecture {
        Architecture::X86_64 => "SCMP_ARCH_X86_64",
        Architecture::Aarch64 => "SCMP_ARCH_AARCH64",
    };
    json!({ "architecture": name, "subArchitectures": [] })
}

fn docker_rule(rule: &Rule<'_>) -> Value {
    let mut entry = json!({
        "names": rule.syscalls,
        "args": rule.checks.iter().map(docker_check).collect::<Vec<_>>(),
        "comment": rule.comment,
    });
    match rule.verdict {
        Verdict::Allow => entry["action"] = json!("SCMP_ACT_ALLOW"),
        Verdict::Refuse(errno) => {
            entry["action"] = json!("SCMP_ACT_ERRNO");
            entry["errnoRet"] = json!(errno.number());
        }
    }
    entry
}

fn docker_check(check: &Check) -> Value {
    // A masked comparison carries its mask first and what must be under it second.
    let (op, value, under_mask) = match check.comparison {
        Comparison::Equal(value) => ("SCMP_CMP_EQ", value, 0),
        Comparison::NotEqual(value) => ("SCMP_CMP_NE", value, 0),
        Comparison::Above(value) => ("SCMP_CMP_GT", value, 0),
        Comparison::Masked { mask, value } => ("SCMP_CMP_MASKED_EQ", mask, value),
    };
    json!({ "index": check.arg, "value": value, "valueTwo": under_mask, "op": op })
}
