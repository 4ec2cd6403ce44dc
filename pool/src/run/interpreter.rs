//! The choice of a waiting interpreter for a program.
//!
//! A program must not notice that its interpreter was started ahead of it. Most can't. Those that can show it in
//! their source: they look at the process, at the interpreter's objects or its clock, or they change something before
//! an import that the import would have seen. So the source is searched for the names by which this is done. A name that
//! means something else costs a slower start and nothing more; so no source is parsed.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use isolator_runner::wire::{Interpreter, Wanted};
use memchr::memmem;
use regex::bytes::{Captures, Regex};

use crate::engine::preload::{Imports, Preload, Want};
use crate::run::workspace::Workspace;

/// Python: by what the process itself can be looked at, which has more variables and time behind it and fewer objects
/// that a collection has not seen yet.
static PYTHON_PROCESS: LazyLock<Regex> =
    LazyLock::new(|| regex(r"/proc\b|\bpsutil\b|\bget_objects\b"));

/// Python: by what modules are seen that were imported, and what importing them did, at any time.
static PYTHON_INTERPRETER: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"\bsys\s*\.\s*modules\b|\bfrom\s+sys\s+import\b|\bmeta_path\b|\bpath_hooks\b|\bpath_importer_cache\b|\baddaudithook\b|\batexit\b|\btracemalloc\b|\bgc\s*\.\s*(?:get_|freeze|unfreeze|callbacks|set_debug|is_tracked)|\bfrom\s+gc\s+import\b|\bgetallocatedblocks\b|\bgetrefcount\b",
    )
});

/// Python: by what an import can be influenced that comes later. Variables may be read, and a docstring may end with the name of a
/// file.
static PYTHON_INFLUENCE: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"\benviron\b(?<read>\s*\.\s*(?:get|copy)\b)?|\bsys\s*\.\s*path\b|\.py(?:(?<docstring>"""|''')|["'])|\b(?:setrlimit|extractall|unpack_archive|putenv|unsetenv|filterwarnings|simplefilter|resetwarnings|catch_warnings|warnings\s*\.\s*filters|showwarning|formatwarning|setLoggerClass|setLogRecordFactory|setlocale|builtins|__builtins__|__import__|importlib|settrace|setprofile|monitoring|register_at_fork|ctypes)\b"#,
    )
});

/// Python: texts and comments.
static PYTHON_TEXT: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r#"(?s)"""(?:\\.|[^\\])*?"""|'''(?:\\.|[^\\])*?'''|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*"#,
    )
});

/// Python: an import, with the modules that it names.
static PYTHON_IMPORT: LazyLock<Regex> = LazyLock::new(|| {
    regex(
        r"\bfrom[ \t]+(?<from>[\w.]+)[ \t]+import\b[ \t]*(?<names>\([^)]*|[^\n;]*)|\bimport[ \t]+(?<modules>[\w.]+(?:[ \t]+as[ \t]+\w+)?(?:[ \t]*,[ \t]*[\w.]+(?:[ \t]+as[ \t]+\w+)?)*)",
    )
});

/// Node.js: by what a program sees for how long its process has been there.
static NODE_CLOCK: LazyLock<Regex> =
    LazyLock::new(|| regex(r"\b(?:performance|perf_hooks|uptime|timeStamp|timeOrigin)\b|/proc\b"));

/// Most source that is searched, in bytes. It takes a few milliseconds, and the programs of more take longer to start
/// than an interpreter does.
const MAX_SOURCE: usize = 1 << 20;

fn regex(pattern: &str) -> Regex {
    Regex::new(&format!("(?-u){pattern}")).expect("it is written here")
}

/// Most modules that count as what a program imports, and the longest name of one.
const MAX_MODULES: usize = 16;
const MAX_NAME: usize = 64;

/// The interpreter that fits a request: its files, and the command that runs them.
pub(crate) fn wanted(preload: &Preload, workspace: &Workspace, argv: &[String]) -> Want {
    let mut sources = sources(preload.interpreter, workspace, argv);
    if sources.iter().map(|source| source.code.len()).sum::<usize>() > MAX_SOURCE {
        return Want::only(Wanted::New);
    }
    // The file that the command names comes first.
    sources.sort_by_key(|source| !source.is_program);
    let sources: Vec<_> = sources.into_iter().map(|source| source.code).collect();
    match preload.interpreter {
        Interpreter::Python => {
            let own: Vec<_> = workspace.files().map(|(path, _)| package(path)).collect();
            python(&sources, &preload.modules, &own)
        }
        Interpreter::Node => Want::only(node(&sources, &preload.modules)),
    }
}

/// A file with a program or a module.
struct Source<'w> {
    code: &'w [u8],
    is_program: bool,
}

fn sources<'w>(
    interpreter: Interpreter,
    workspace: &'w Workspace,
    argv: &[String],
) -> Vec<Source<'w>> {
    let extensions: &[&str] = match interpreter {
        Interpreter::Python => &[".py"],
        Interpreter::Node => &[".js", ".mjs", ".cjs", ".ts", ".mts", ".cts"],
    };
    let source = |(path, code): (&str, &'w [u8])| {
        let is_program = argv.iter().any(|arg| arg == path);
        let is_source = is_program || extensions.iter().any(|extension| path.ends_with(extension));
        is_source.then_some(Source { code, is_program })
    };
    workspace.files().filter_map(source).collect()
}

/// `own` are the names of the request's files and folders, which may be modules.
fn python(sources: &[&[u8]], modules: &[String], own: &[&str]) -> Want {
    if sources.iter().any(|code| PYTHON_PROCESS.is_match(code)) {
        return Want::only(Wanted::New);
    }
    let imports: Vec<_> = sources.iter().map(|code| imports(code)).collect();
    if imports.iter().all(Vec::is_empty)
        || sources.iter().any(|code| PYTHON_INTERPRETER.is_match(code))
    {
        return Want::only(Wanted::Bare);
    }
    let packages: Vec<_> = modules.iter().map(|module| package(module)).collect();
    let is_loaded = imports_first(sources, &imports, &packages);
    let interpreter = if is_loaded { Wanted::Loaded } else { Wanted::Bare };
    let named = of_image(imports.iter().flatten().flat_map(|import| &import.modules), own);
    let packages: Vec<_> = named.iter().map(|module| package(module)).collect();
    if !imports_first(sources, &imports, &packages) {
        return Want::only(interpreter);
    }
    let parts = of_image(imports.iter().flatten().flat_map(|import| &import.parts), own);
    let imports = Imports { modules: named, parts };
    Want { interpreter, imports, for_session: false }
}

/// The names that are not of the request itself, sorted. None if there are too many.
fn of_image<'a>(names: impl Iterator<Item = &'a String>, own: &[&str]) -> Vec<String> {
    let is_name = |name: &&String| {
        let is_part = |part: &str| {
            part.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
        };
        name.len() <= MAX_NAME && name.is_ascii() && name.split(['.', ':']).all(is_part)
    };
    let of_image = names.filter(is_name).filter(|name| {
        let package = package(name);
        package != "__future__" && !own.contains(&package)
    });
    let names: BTreeSet<_> = of_image.collect();
    if names.len() > MAX_MODULES { Vec::new() } else { names.into_iter().cloned().collect() }
}

fn node(sources: &[&[u8]], modules: &[String]) -> Wanted {
    let packages: Vec<_> = modules.iter().map(|module| package(module)).collect();
    if sources.iter().any(|code| NODE_CLOCK.is_match(code)) {
        Wanted::New
    } else if mentions(sources, &packages) {
        Wanted::Loaded
    } else {
        Wanted::Bare
    }
}

/// The package that has the module.
fn package(module: &str) -> &str {
    module.split(['.', '/', ':']).next().unwrap_or_default()
}

fn mentions(sources: &[&[u8]], packages: &[&str]) -> bool {
    let finders: Vec<_> = packages.iter().map(memmem::Finder::new).collect();
    sources.iter().any(|code| finders.iter().any(|finder| finder.find(code).is_some()))
}

/// Whether the packages are imported at all, and nothing comes before that could have influenced it. When the modules of
/// the request run is not known, so that nothing in them may, nor in the program before it imports one of them.
fn imports_first(sources: &[&[u8]], imports: &[Vec<Import>], packages: &[&str]) -> bool {
    let Some((program, others)) = sources.split_first() else { return false };
    let is_of_package =
        |import: &&Import| import.modules.iter().any(|name| packages.contains(&package(name)));
    if !imports.iter().flatten().any(|import| is_of_package(&import)) {
        return false;
    }
    let counts = |import: &&Import| !others.is_empty() || is_of_package(import);
    let last = imports[0].iter().filter(counts).map(|import| import.at).max().unwrap_or(0);
    first_influence(program).is_none_or(|first| first > last)
        && others.iter().all(|code| first_influence(code).is_none())
}

fn first_influence(code: &[u8]) -> Option<usize> {
    let mut found = PYTHON_INFLUENCE.captures_iter(code);
    let is_harmless =
        |found: &Captures<'_>| found.name("read").or_else(|| found.name("docstring")).is_some();
    let influence = found.find(|found| !is_harmless(found))?;
    influence.get(0).map(|all| all.start())
}

/// An import statement.
struct Import {
    at: usize,
    modules: Vec<String>,
    /// The names that are imported from the module: see [`Imports::parts`].
    parts: Vec<String>,
}

fn imports(code: &[u8]) -> Vec<Import> {
    let mut blanked = code.to_vec();
    for text in PYTHON_TEXT.find_iter(code) {
        blanked[text.range()].fill(b' ');
    }
    let import = |found: Captures<'_>| {
        let modules = found.name("from").or_else(|| found.name("modules"));
        let modules = modules.map_or(&b""[..], |modules| modules.as_bytes());
        let modules = String::from_utf8_lossy(modules);
        let name = |part: &str| part.split_whitespace().next().unwrap_or_default().to_owned();
        let names = found.name("names").map_or(&b""[..], |names| names.as_bytes());
        let names = String::from_utf8_lossy(names);
        let part = |part: &str| format!("{modules}:{}", name(part));
        let parts = names.trim_start_matches('(').split(',').map(part);
        Import {
            at: found.get(0).map_or(0, |all| all.start()),
            modules: modules.split(',').map(name).collect(),
            parts: if found.name("from").is_some() { parts.collect() } else { Vec::new() },
        }
    };
    PYTHON_IMPORT.captures_iter(&blanked).map(import).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modules() -> Vec<String> {
        ["numpy", "pandas", "matplotlib.pyplot"].map(str::to_owned).to_vec()
    }

    fn of(code: &str) -> Wanted {
        python(&[code.as_bytes()], &modules(), &["main"]).interpreter
    }

    #[test]
    fn modules_of_the_image_count_if_nothing_comes_before_them() {
        let of =
            |code: &str| python(&[code.as_bytes()], &modules(), &["main", "mine"]).imports.modules;
        assert_eq!(
            of("import scipy.stats, json as j\nfrom sympy import x"),
            ["json", "scipy.stats", "sympy"]
        );
        assert_eq!(
            of("from __future__ import annotations\nimport mine, mine.part, sympy"),
            ["sympy"]
        );
        for code in [
            "print('import sympy')",
            "import os\nos.environ['A'] = 'b'\nimport sympy",
            "import sys, sympy\nprint(sys.modules)",
            "from . import sympy",
            &format!(
                "import {}",
                (0..=MAX_MODULES).map(|n| format!("m{n}")).collect::<Vec<_>>().join(", ")
            ),
        ] {
            assert_eq!(of(code), [""; 0], "{code}");
        }
    }

    #[test]
    fn names_imported_from_modules_may_be_modules() {
        let of =
            |code: &str| python(&[code.as_bytes()], &modules(), &["main", "mine"]).imports.parts;
        assert_eq!(
            of("from scipy import stats as s, optimize; import numpy\nfrom mine import x"),
            ["scipy:optimize", "scipy:stats"]
        );
        assert_eq!(
            of("from sklearn.utils import (  # some\n    validation,\n    Bunch,\n)\nprint(1)"),
            ["sklearn.utils:Bunch", "sklearn.utils:validation"]
        );
        for none in
            ["from scipy import *", "from . import stats", "import scipy", "from scipy import"]
        {
            assert_eq!(of(none), [""; 0], "{none}");
        }
    }

    #[test]
    fn programs_that_import_modules_first_get_the_interpreter_that_has_them() {
        for code in [
            "import numpy",
            "import numpy as np\nprint(np.arange(3))",
            "import os, sys, pandas as pd\nos.environ['A'] = 'b'",
            "from matplotlib import pyplot as plt",
            "\"\"\"Uses os.environ.get('A').\"\"\"\nimport pandas",
            "def f():\n    import numpy\n    return numpy",
            "try:\n    import numpy\nexcept ImportError:\n    pass",
            "import warnings\nimport numpy as np\nwarnings.filterwarnings('ignore')",
            "import os; home = os.environ.get('HOME'); import pandas",
            "import json\nprint('# import this')\nimport numpy",
            "import gc, numpy\ngc.collect()",
            "\"\"\"Usage: main.py\"\"\"\nimport numpy",
            "import sys, numpy\nprint(sys.path)",
        ] {
            assert_eq!(of(code), Wanted::Loaded, "{code}");
        }
    }

    #[test]
    fn programs_that_import_none_or_could_tell_get_the_bare_one() {
        for code in [
            "print('hello')",
            "# pandas",
            "print('import pandas')",
            "'''\nimport pandas\n'''",
            "import pandasql",
            "import warnings; warnings.filterwarnings('ignore'); import numpy as np",
            "import os; os.environ['OPENBLAS_NUM_THREADS'] = '2'; import numpy",
            "import os\nos.environ.update(A='b')\ndef f():\n    import numpy",
            "import atexit; atexit.register(print, 'x'); import pandas, logging",
            "import sys\nsys.meta_path.insert(0, Blocker())\nimport pandas",
            "import builtins\nbuiltins.__import__ = mine\nimport pandas",
            "import tracemalloc\ntracemalloc.start()\nimport numpy",
            "import sys, numpy\nprint('pandas' in sys.modules)",
            "import gc, pandas\nprint(gc.get_freeze_count())",
            "import importlib\nimportlib.import_module('pandas')",
            "import sys\nsys.path[:] = []\nimport numpy",
            "import sys; sys.path.insert(0, 'vendor.zip'); import pandas",
            "open('pandas.py', 'w').write('x = 1')\nimport pandas",
            "import zipfile\nzipfile.ZipFile('a.zip').extractall()\nimport pandas",
            "import resource\nresource.setrlimit(resource.RLIMIT_AS, (1, 1))\nimport numpy",
        ] {
            assert_eq!(of(code), Wanted::Bare, "{code}");
        }
    }

    #[test]
    fn programs_that_look_at_their_process_get_a_new_one() {
        for code in [
            "print(open('/proc/self/environ').read())",
            "import numpy, psutil",
            "import gc\nprint(len(gc.get_objects()))",
        ] {
            assert_eq!(of(code), Wanted::New, "{code}");
        }
        let of = |code: &str| node(&[code.as_bytes()], &[]);
        for code in
            ["console.log(performance.now())", "process.uptime()", "new Event('a').timeStamp"]
        {
            assert_eq!(of(code), Wanted::New, "{code}");
        }
        assert_eq!(of("console.time('a'); console.log(process.hrtime())"), Wanted::Bare);
    }

    #[test]
    fn modules_of_the_request_count_wherever_they_are_imported() {
        let of = |program: &str, module: &str| {
            python(&[program.as_bytes(), module.as_bytes()], &modules(), &["main", "helper"])
                .interpreter
        };
        let sets = "import os\nos.environ['A'] = 'b'\n";
        assert_eq!(of("import helper", "import numpy"), Wanted::Loaded);
        assert_eq!(of(&format!("{sets}import helper"), "import numpy"), Wanted::Bare);
        assert_eq!(of(&format!("import helper\n{sets}"), "import numpy"), Wanted::Loaded);
        assert_eq!(of("import helper\nimport numpy", sets), Wanted::Bare);
    }
}
