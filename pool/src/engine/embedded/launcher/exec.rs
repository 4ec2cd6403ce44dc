//! The last step in a sandbox, in its process 1: it becomes the runner, or a template.

use std::rc::Rc;

use isolator_runner::inherited;
use libcontainer::oci_spec::runtime::Spec;
use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError, default};
use seccompiler::BpfProgram;

/// The last step in a sandbox: its process becomes the runner.
#[derive(Clone)]
pub(super) struct Exec {
    /// The filter of system calls.
    pub(super) programs: Rc<[BpfProgram]>,
}

/// Sorts the variables, which `libcontainer` sets in an order of chance. A runner starts programs with sorted ones, and
/// those of a template become a program's.
#[allow(unsafe_code)]
fn sort_variables() {
    let mut variables: Vec<_> = std::env::vars_os().collect();
    variables.sort();
    // SAFETY: the process has a single thread.
    unsafe {
        for (name, _) in &variables {
            std::env::remove_var(name);
        }
        for (name, value) in &variables {
            std::env::set_var(name, value);
        }
    }
}

impl Executor for Exec {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        // Programs ignore none of those that the launcher ignores.
        inherited::reset_signals(&[]);
        sort_variables();
        for program in self.programs.iter() {
            seccompiler::apply_filter(program)
                .map_err(|error| ExecutorError::Other(format!("seccomp: {error}")))?;
        }
        default::get_executor().exec(spec)
    }

    fn validate(&self, _: &Spec) -> Result<(), ExecutorValidationError> {
        Ok(())
    }
}
