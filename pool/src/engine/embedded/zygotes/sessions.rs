//! Templates of the kernels of sessions. Each is a copy of a plain template, with which it shares the memory of its modules, and has the
//! kernel and all that the kernel imports. No program ever gets a fork of it.

use std::sync::Arc;

use super::slots::{Availability, Slot, TemplateKey};
use super::template::{ForkError, Template, TemplateError};
use crate::engine::embedded::EmbeddedEngine;
use crate::engine::{SandboxName, SandboxSpec};
use crate::lock::lock;

impl EmbeddedEngine {
    /// The version of the interpreter, if the kernel of a session can be forked. If not, its template is begun.
    pub(in crate::engine::embedded) fn can_fork_kernel_template(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        with_modules: bool,
    ) -> Option<String> {
        let (plain, _) = self.key(name, spec, with_modules)?;
        let key = plain.for_sessions(true);
        let slot = self.templates.slot(&key);
        if slot.is_ready() {
            return Some(lock(&slot.state).known.version.clone());
        }
        if slot.begins() {
            self.copy_template(&key, &slot);
        }
        None
    }

    /// Gives up the template of kernels one of which did not get ready.
    pub(in crate::engine::embedded) fn give_up_kernel_template(
        &self,
        name: &SandboxName,
        spec: &Arc<SandboxSpec>,
        with_modules: bool,
        why: &str,
    ) {
        let image = &spec.image.name;
        tracing::warn!(%image, error = why, "a forked kernel did not get ready");
        if let Some((plain, _)) = self.key(name, spec, with_modules) {
            self.templates.slot(&plain.for_sessions(true)).give_up_running(why);
        }
    }

    /// Makes the template of kernels again if the one that it is a copy of was replaced: that one is kept as long as its copy.
    pub(super) fn renew_for_sessions(&self, plain: &TemplateKey) {
        let plain = plain.for_sessions(false);
        let Some(slot) = self.templates.existing(&plain.for_sessions(true)) else { return };
        let source = self.templates.slot(&plain).running();
        if slot.is_copy_of_another(source.as_ref()) && slot.begins() {
            self.copy_template(&plain, &slot);
        }
    }

    /// Makes a template of kernels in the background. `slot` waits for it.
    pub(super) fn copy_template(&self, key: &TemplateKey, slot: &Arc<Slot>) {
        let plain = key.for_sessions(false);
        let source = self.templates.slot(&plain);
        let slot = Arc::clone(slot);
        self.tasks.spawn(async move {
            let Availability::Running(source) = source.look() else {
                // It is made with the next sandbox.
                slot.give_back();
                return;
            };
            let mut running = source.lock().await;
            let copied = running.copy().await;
            drop(running);
            let made = match copied {
                Ok(copied) => Template::of_copy(copied, &source).await,
                Err(ForkError::NotForked(error) | ForkError::Lost(error)) => {
                    Err(TemplateError::Io(error))
                }
            };
            slot.put(made);
        });
    }
}
