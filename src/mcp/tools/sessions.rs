//! The tools of sessions.
//!
//! Every conversation pays for their schemas, so those of answers name only what comes after success. An answer that failed has a
//! status and a message besides its text.

use isolator_pool::engine::preload::Interpreter;
use rmcp::model::{Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::{like_execute_code, offer_packages, plain_schema, tell_usual_resources, tool};
use crate::calls::ToolName;
use crate::config::Config;
use crate::duration;
use crate::request::arguments::{OneSession, OpenSession, RewindSession, RunCommand};

/// The definition of `open_session`.
pub(super) fn open_session(config: &Config) -> Tool {
    let with_state = config.languages.values().filter(|language| language.kernel.is_some());
    let with_state =
        with_state.map(|language| language.name.clone()).collect::<Vec<_>>().join(" and ");
    let idle = duration::shown(config.sessions.idle_timeout);
    let has_python =
        config.languages.values().any(|language| language.kernel == Some(Interpreter::Python));
    let undo = if has_python && config.sessions.checkpoints > 0 {
        "A Python cell that hangs, crashes or runs out of memory is undone, and so are its changes in the working directory."
    } else {
        "A cell that hangs or crashes can end the session."
    };
    let state = if with_state.is_empty() {
        String::new()
    } else {
        format!(
            "In {with_state} variables live on, too, and the value of a cell's last expression is returned. "
        )
    };
    let description = format!(
        "Opens a sandbox that lives on between calls, for work in several steps. Pass its handle as session to execute_code, which \
         then runs the code there as the next cell, and to run_command. Files live on. {state}{undo} A session ends if unused for {idle}."
    );
    let mut input = plain_schema::<OpenSession>();
    input["required"] = json!(["language"]);
    input["properties"]["language"]["enum"] = config.languages.keys().cloned().collect::<Value>();
    input["properties"]["memory_mb"]["maximum"] = json!(config.limits.max_memory.as_mib());
    tell_usual_resources(&mut input["properties"], config.languages.values().map(|it| &**it));
    offer_packages(&mut input, config, None);
    let mut output = json!({ "type": "object", "properties": {
        "session": text("The handle."),
        "expires_at": text("When it ends if unused."),
        "limits": { "type": "object", "description": "What it can use.", "properties": {
            "memory_mb": { "type": "integer" },
            "max_timeout": { "type": "string" },
        }},
        "packages": { "type": "array", "items": { "type": "string" }, "description": "What its cells can import from." },
        "replayed": { "type": "object", "description": "What was run again.", "properties": {
            "steps": { "type": "integer" },
        }},
    }});
    if !config.packages.is_used()
        && let Some(properties) = output["properties"].as_object_mut()
    {
        properties.remove("packages");
    }
    tool(ToolName::OpenSession, "Open a session", description, [input, output], changing(false))
}

/// The definition of `run_command`.
pub(super) fn run_command() -> Tool {
    let mut input = plain_schema::<RunCommand>();
    input["required"] = json!(["session", "command"]);
    let handle = text("For get_result, while it is running.");
    let output = like_execute_code(json!({ "handle": handle }));
    let description = "Runs a shell command in a session's sandbox, in its working directory. Processes that it leaves in the \
                       background live on, but run only while a call does.";
    tool(ToolName::RunCommand, "Run a command", description, [input, output], changing(false))
}

/// The definition of `rewind_session`.
pub(super) fn rewind_session() -> Tool {
    let mut input = plain_schema::<RewindSession>();
    input["required"] = json!(["session", "cells"]);
    let output = json!({ "type": "object", "properties": {
        "undone_cells": { "type": "integer", "description": "How many cells were undone." },
        "can_rewind": { "type": "integer", "description": "How many more can be." },
        "notes": { "type": "array", "items": { "type": "string" } },
    }});
    let description = "Undoes the last cells of a Python session: variables and the files of the working directory are as before them.";
    tool(ToolName::RewindSession, "Rewind a session", description, [input, output], changing(false))
}

/// The definition of `interrupt_session`.
pub(super) fn interrupt_session() -> Tool {
    let mut input = plain_schema::<OneSession>();
    input["required"] = json!(["session"]);
    let output = json!({ "type": "object", "properties": {
        "interrupted": { "type": "boolean", "description": "Whether something was running." },
    }});
    let description = "Interrupts the cell or command that is running in a session, as Ctrl-C does. Its effects until then stay.";
    tool(
        ToolName::InterruptSession,
        "Interrupt a session",
        description,
        [input, output],
        changing(false),
    )
}

/// The definition of `close_session`.
pub(super) fn close_session() -> Tool {
    let mut input = plain_schema::<OneSession>();
    input["required"] = json!(["session"]);
    let output = json!({ "type": "object", "properties": {
        "closed": { "type": "boolean", "description": "Whether it was open." },
    }});
    let description = "Ends a session and removes its sandbox with everything in it.";
    tool(ToolName::CloseSession, "Close a session", description, [input, output], changing(true))
}

fn text(description: &str) -> Value {
    json!({ "type": "string", "description": description })
}

/// The hints of a tool that changes a session. The one that destroys it does nothing more if it is called again.
fn changing(is_destructive: bool) -> ToolAnnotations {
    ToolAnnotations::new()
        .read_only(false)
        .destructive(is_destructive)
        .idempotent(is_destructive)
        .open_world(false)
}
