//! The sections `policies` and `tools`.

use std::collections::BTreeMap;

use super::section::section;

section! {
    /// Rules for the code of programs. A policy is a file of rules in ast-grep's format. "strict", for Python, comes with
    /// Isolator.
    #[derive(Clone)]
    pub(super) struct PolicySettings {
        /// Folder of your own policies, relative to this file: NAME.yml is the policy NAME. Default: none.
        pub(super) folder: Option<String> = None,
        /// The policies for the programs of each language, such as {"python": ["strict"]}.
        pub(super) apply: BTreeMap<String, Vec<String>> = BTreeMap::new(),
    }
}

section! {
    /// The tools besides execute_code.
    #[derive(Clone)]
    pub(super) struct ToolSettings {
        /// The tool test_code, which checks a program's syntax and policies and then runs it.
        pub(super) test_code: TestCodeSettings = TestCodeSettings::default(),
    }
}

section! {
    /// The tool test_code.
    #[derive(Clone)]
    pub(super) struct TestCodeSettings {
        /// Whether the tool test_code is offered.
        pub(super) enabled: bool = false,
        /// The language of its programs.
        // The language that agents write most.
        pub(super) language: String = "python".to_owned(),
    }
}
