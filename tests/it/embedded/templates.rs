//! Interpreters that are forked into sandboxes.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

use super::{launchers, start};
use crate::common::eventually;
use crate::common::process::Process;
use crate::common::server::Server;
use serde_json::{Value, json};

/// Forks whose random numbers are compared.
const FORKS: usize = 100;

pub(super) fn python(code: &str) -> Value {
    json!({ "language": "python", "entrypoint_code": code })
}

pub(super) fn templates(server: &Server) -> Vec<Process> {
    let launchers = launchers(server.process()).into_iter();
    let children = launchers.flat_map(|launcher| launcher.inner.children());
    // Those that make one are in its group, too.
    let is_template =
        |child: &Process| child.read("cgroup").contains("+template/") && modules(*child).is_some();
    children.filter(is_template).collect()
}

/// The modules that a template has imported, if the process is one.
fn modules(template: Process) -> Option<String> {
    let environ = template.read("environ");
    let mut variables = environ.split('\0');
    variables.find_map(|variable| variable.strip_prefix("ISOLATOR_PRELOAD=0:")).map(str::to_owned)
}

pub(super) async fn with_templates() -> Server {
    let server = start(json!({ "pool": { "size": 4, "hot": 0 } })).await;
    eventually("a template with modules", async || templates(&server).len() > 1).await;
    server.wait_until_ready().await;
    server
}

#[tokio::test]
async fn a_template_has_no_privileges_and_sees_no_other_process() {
    let server = with_templates().await;
    for template in templates(&server) {
        template.assert_has_no_privileges();
        let root = template.directory().join("root");
        let entries = fs::read_dir(root.join("proc")).expect("it has a /proc");
        let seen: BTreeSet<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        assert!(seen.iter().all(|name| name.parse::<u32>().is_err()), "{seen:?}");
        let owner = fs::metadata(template.directory()).expect("it runs").uid();
        assert!((524_288..589_824).contains(&owner), "user {owner}");
        let launcher = launchers(server.process())[0].inner;
        for kind in ["net", "ipc", "uts", "mnt", "cgroup"] {
            assert_ne!(template.namespace(kind), launcher.namespace(kind), "{kind}");
        }
    }
    server.stop().await;
}

/// The modules of each template.
fn imported(server: &Server) -> Vec<String> {
    templates(server).into_iter().filter_map(modules).collect()
}

#[tokio::test]
async fn frequent_imports_get_a_template() {
    let server = with_templates().await;
    // It writes a folder when it is imported, and the program finds it.
    let code = "import matplotlib.pyplot, os\nprint(sorted(os.listdir('/tmp')))";
    let first = server.call(python(code)).await.output().to_owned();
    assert!(first.contains("matplotlib"), "{first}");
    eventually("a template for the program", async || {
        assert_eq!(server.call(python(code)).await.output(), first);
        imported(&server).iter().any(|modules| modules == "matplotlib.pyplot,os")
    })
    .await;
    for _ in 0..4 {
        let answer = server.call(python(code)).await;
        assert!(answer.is_preloaded(), "{answer:?}");
        assert_eq!(answer.output(), first);
        // What prints, what is not there, and what costs nothing has no template.
        assert!(server.call(python("import this")).await.output().starts_with("The Zen"));
        server.call(python("import nowhere")).await;
        server.call(python("import json")).await;
    }
    // What is imported from a module may be a module, too.
    let code = "from scipy import stats, optimize\nfrom math import sqrt\nprint(stats.norm.cdf(0), sqrt(4))";
    let parts = "math,scipy,scipy:optimize,scipy:stats";
    eventually("a template for parts", async || {
        assert_eq!(server.call(python(code)).await.output(), "0.5 2.0\n");
        imported(&server).iter().any(|modules| modules == parts)
    })
    .await;
    let known = ["", "numpy,pandas", "matplotlib.pyplot,os", parts];
    eventually("an end of those that save nothing", async || {
        imported(&server).iter().all(|modules| known.contains(&modules.as_str()))
    })
    .await;
    server.stop().await;
}

#[tokio::test]
async fn forks_share_no_random_numbers() {
    let server = with_templates().await;
    let code = "import pandas, random, ssl, uuid, tempfile, secrets, numpy\n\
                from multiprocessing import current_process\n\
                print(random.random(), numpy.random.random(), ssl.RAND_bytes(8).hex(), uuid.uuid4(),\n\
                \x20     uuid.uuid1(), next(tempfile._get_candidate_names()), secrets.token_hex(),\n\
                \x20     bytes(current_process().authkey).hex(), sep='\\n')";
    let mut seen = BTreeSet::new();
    for number in 1..=FORKS {
        let answer = server.call(python(code)).await;
        assert!(answer.is_preloaded(), "{answer:?}");
        seen.extend(answer.output().lines().map(ToOwned::to_owned));
        assert_eq!(seen.len(), 8 * number, "{}", answer.output());
    }
    server.stop().await;
}

/// The imports of programs that print what modules have drawn from the system, once for each process, and what they print: no
/// value comes twice.
const DRAWN: [(&str, &str); 3] = [
    ("sympy", "sympy.randprime(2**127, 2**128), sympy.Dummy().dummy_index"),
    (
        "sympy.crypto.crypto",
        "sympy.crypto.crypto.dh_private_key(64), sympy.crypto.crypto.elgamal_private_key(64),\
         sympy.crypto.crypto.gm_public_key(2**61 - 1, 2**89 - 1)",
    ),
    (
        "more_itertools,numpy,random,scipy.stats",
        "scipy.stats.norm.rvs(), scipy.stats.uniform.rvs(), more_itertools.random_permutation(range(50)),\
         random.getrandbits(64), random.gauss(), numpy.random.standard_normal(),\
         numpy.random.get_bit_generator().seed_seq.spawn(1)[0].entropy",
    ),
];

#[tokio::test]
async fn forks_redraw_the_random_numbers_of_modules() {
    let server = with_templates().await;
    for (modules, values) in DRAWN {
        let code = format!("import {modules}\nprint({values}, sep='\\n')");
        eventually("a template for the program", async || {
            server.call(python(&code)).await;
            imported(&server).iter().any(|found| found == modules)
        })
        .await;
        let mut seen = BTreeSet::new();
        for _ in 0..FORKS / 4 {
            let answer = server.call(python(&code)).await;
            assert!(answer.is_preloaded(), "{answer:?}");
            let before = seen.len();
            let lines: Vec<_> = answer.output().lines().map(ToOwned::to_owned).collect();
            seen.extend(lines.iter().cloned());
            assert_eq!(seen.len(), before + lines.len(), "{code}: {lines:?}");
        }
    }
    server.stop().await;
}

#[tokio::test]
async fn cheap_imports_next_to_a_waiting_fork_make_no_template() {
    let server = with_templates().await;
    let code = "import pandas, time, json, os, datetime, pytz, dateutil\nprint('x')";
    for _ in 0..4 {
        assert_eq!(server.call(python(code)).await.output(), "x\n");
    }
    // What was not known of some of them is known now.
    eventually("an end of what saves nothing", async || {
        imported(&server).iter().all(|modules| ["", "numpy,pandas"].contains(&modules.as_str()))
    })
    .await;
    for _ in 0..4 {
        let answer = server.call(python(code)).await;
        assert!(answer.is_preloaded(), "{answer:?}");
        let made = imported(&server);
        assert!(
            made.iter().all(|modules| ["", "numpy,pandas"].contains(&modules.as_str())),
            "{made:?}"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn a_template_can_fork_despite_a_low_limit_of_processes() {
    let settings = json!({ "pool": { "size": 4, "hot": 0 }, "defaultPidsLimit": 4 });
    let server = start(settings).await;
    eventually("a template with modules", async || templates(&server).len() > 1).await;
    let old = templates(&server);
    for number in 0..FORKS / 4 {
        let answer = server.call(python(&format!("import pandas; print({number})"))).await;
        assert_eq!(answer.output(), format!("{number}\n"));
    }
    // Another launcher's may have come meanwhile.
    let now = templates(&server);
    for template in old {
        assert!(now.iter().any(|it| it.directory() == template.directory()), "it has ended");
    }
    server.stop().await;
}

#[tokio::test]
async fn forks_can_t_lock_or_watch_the_program_that_they_share() {
    let server = with_templates().await;
    // A program that looks at it openly gets a new interpreter.
    let code = "import pandas\ntry: open('/pro' 'c/self/exe')\nexcept PermissionError: print('no')";
    assert_eq!(server.call(python(code)).await.output(), "no\n");
    server.stop().await;
}

#[tokio::test]
async fn a_template_that_ends_or_hangs_is_replaced_and_every_program_runs() {
    let server = with_templates().await;
    for signal in ["-KILL", "-STOP"] {
        let old = templates(&server);
        for template in &old {
            let pid = template.directory().file_name().unwrap().to_owned();
            assert!(Command::new("kill").arg(signal).arg(pid).status().expect("kill").success());
        }
        for number in 0..4 {
            let answer = server.call(python(&format!("import pandas; print({number})"))).await;
            assert_eq!(answer.output(), format!("{number}\n"));
        }
        if signal == "-KILL" {
            let is_new =
                |template: &Process| !old.iter().any(|it| it.directory() == template.directory());
            eventually("a new template", async || {
                server.call(python("import pandas")).await;
                templates(&server).iter().any(is_new)
            })
            .await;
        }
    }
    server.stop().await;
}
