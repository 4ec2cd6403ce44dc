//! The programs that are measured.

use std::collections::BTreeMap;

use isolator_pool::engine::SandboxSpec;
use isolator_pool::run::workspace::Workspace;

use crate::scenario::PoolShape;

/// A program and what it prints.
#[derive(Debug)]
pub struct Program {
    /// Name of its language.
    pub language: &'static str,
    /// What it does, in a word or two.
    pub name: &'static str,
    /// Its source.
    pub code: &'static str,
    /// Its standard output, followed by its standard error.
    pub prints: &'static str,
    /// A library that our image has, but an operator's may lack. If the program fails, it is left out.
    pub needs: Option<&'static str>,
}

/// All programs. Each does next to nothing, because starting it is what is measured.
pub static PROGRAMS: [Program; 4] = [
    Program { language: "python", name: "hello", code: "print('hi')", prints: "hi\n", needs: None },
    Program {
        language: "python",
        name: "import pandas",
        code: "import pandas\nprint(pandas.Series([1, 2, 3]).sum())",
        prints: "6\n",
        needs: Some("pandas"),
    },
    Program {
        language: "javascript",
        name: "hello",
        code: "console.log('hi')",
        prints: "hi\n",
        needs: None,
    },
    Program {
        language: "go",
        name: "hello",
        code: "package main\n\nfunc main() { println(\"hi\") }\n",
        prints: "hi\n",
        needs: None,
    },
];

/// A program with everything that is needed to start it.
#[derive(Debug)]
pub struct Workload {
    /// The program.
    pub program: &'static Program,
    /// The command that runs the program's file.
    pub argv: Vec<String>,
    /// Variables for the program.
    pub env: BTreeMap<String, String>,
    /// The program's file.
    pub workspace: Workspace,
    /// The sandboxes of its language.
    pub sandbox: SandboxSpec,
    /// The pool of its language, used while throughput is measured.
    pub pool: PoolShape,
}

impl Workload {
    /// Its place among all programs.
    pub(crate) fn place(&self) -> Option<usize> {
        PROGRAMS.iter().position(|program| std::ptr::eq(program, self.program))
    }

    /// What tables and errors call it.
    pub fn label(&self) -> String {
        format!("{}, {}", self.program.language, self.program.name)
    }
}

/// Every program as a workload that can't be started, for the tests of what keeps the books.
#[cfg(test)]
pub(crate) fn examples() -> Vec<std::sync::Arc<Workload>> {
    use isolator_pool::engine::Image;
    use isolator_pool::engine::limits::{ByteSize, CpuShare, FixedLimits, Resources};
    use isolator_pool::run::workspace::{WorkspaceBuilder, WorkspaceLimits};

    let mib = ByteSize::mib(1);
    let sandbox = SandboxSpec {
        image: Image::default(),
        resources: Resources { memory: mib, cpu: CpuShare::millis(500) },
        limits: FixedLimits {
            pids: 4,
            open_files: 64,
            workspace: mib,
            tmp: mib,
            inodes: 64,
            shm: mib,
        },
        workdir: "/workspace".to_owned(),
        user: (1000, 1000),
        network: "none".to_owned(),
        cap_drop: Vec::new(),
        readonly_root: true,
        runtime: None,
        preload: None,
        packages: None,
        allow_unlimited: false,
    };
    let workload = |program| Workload {
        program,
        argv: Vec::new(),
        env: BTreeMap::new(),
        workspace: WorkspaceBuilder::new(WorkspaceLimits { files: 0, total: 0 }).build(),
        sandbox: sandbox.clone(),
        pool: PoolShape { size: 2, hot: 1 },
    };
    PROGRAMS.iter().map(workload).map(std::sync::Arc::new).collect()
}
